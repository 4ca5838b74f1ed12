//! The files of `daqmeter hosts --print` as they are printed: Slurm, ClusterShell and Ansible start
//! a short run on four hosts, and each leaves a file of records for each host.

use anyhow::Result;

use super::Hosts;
use crate::shell::{line, program, renew, root, scratch};

pub(crate) fn all() -> Result<()> {
    let _hosts = Hosts::up("10.79.0", &["dqm-head", "dqm-n1", "dqm-n2", "dqm-n3", "dqm-n4"])?;
    let folder = scratch("launch");
    renew(&folder)?;
    let script = line("sh -e").arg(root().join("vm/src/hosts/launch.sh"));
    script.env("DAQMETER", program()).within(&folder).run()
}
