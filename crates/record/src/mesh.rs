//! Places of the nodes of a mesh interconnect, for maps, planners and the page.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One mesh: a CMN instance.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Mesh {
    /// PMU that counts it, e.g. `arm_cmn_0`; a name of its own where no PMU is known.
    pub name: String,
    /// `CMN-600`, `CMN-650`, `CMN-700`, `CMN-S3`, `CI-700`; empty where it is not known.
    pub part: String,
    /// `r1p2`; empty where it is not known.
    #[serde(default)]
    pub revision: String,
    /// Physical address of the configuration space, where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<u64>,
    /// Crosspoints along X.
    pub width: u32,
    /// Crosspoints along Y.
    pub height: u32,
    /// Each crosspoint may have several debug/trace monitors (DTM), one for two ports.
    #[serde(default)]
    pub multi_dtm: bool,
    /// The crosspoints, row by row from (0,0): the one at (x,y) is number `y * width + x`.
    pub crosspoints: Vec<Crosspoint>,
    /// Everything that is connected to them and has registers of its own.
    pub nodes: Vec<Node>,
}

/// One crosspoint (XP).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Crosspoint {
    /// Column.
    pub x: u32,
    /// Row.
    pub y: u32,
    /// NodeID.
    pub node_id: u16,
    /// Number among the crosspoints.
    pub logical_id: u16,
    /// Domain of the debug/trace controller (DTC); unknown on CMN-600 with more than one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dtc: Option<u8>,
    /// Kind of node at each port, e.g. `RN-D`; empty for a free port.
    pub ports: Vec<String>,
}

/// One node behind a port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Node {
    /// `HN-F`, `RN-D`, `DTC`, ...
    pub kind: String,
    /// Node type as the registers have it (CMN TRM, `node_type`).
    pub type_code: u16,
    /// NodeID.
    pub node_id: u16,
    /// Number among the nodes of its type.
    pub logical_id: u16,
    /// Number of its crosspoint in [`Mesh::crosspoints`].
    pub crosspoint: u32,
    /// Port of the crosspoint.
    pub port: u8,
    /// Device at the port.
    pub device: u8,
    /// Purpose of the node, if a label file has it: `PCI_0`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub label: String,
}

impl Mesh {
    pub fn crosspoint_of(&self, node: &Node) -> Option<&Crosspoint> {
        self.crosspoints.get(node.crosspoint as usize)
    }

    /// Returns the number of debug/trace controllers: that of the DTC nodes, at least one.
    pub fn dtcs(&self) -> usize {
        let nodes = self.nodes.iter().filter(|node| node.kind == "DTC").count();
        let last = self.crosspoints.iter().filter_map(|xp| xp.dtc).max();
        nodes.max(last.map_or(1, |last| usize::from(last) + 1)).max(1)
    }

    /// Returns the column and row of a NodeID of any node type.
    pub fn place(&self, node_id: u16) -> Option<(u32, u32)> {
        let node = self.nodes.iter().find(|node| node.node_id == node_id);
        let of_node = node.and_then(|node| self.crosspoint_of(node));
        let xp = of_node.or_else(|| self.crosspoints.iter().find(|xp| xp.node_id == node_id))?;
        Some((xp.x, xp.y))
    }
}
