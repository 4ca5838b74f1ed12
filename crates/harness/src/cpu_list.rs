//! CPUs as options and workloads write them.

use std::str::FromStr;

use daqmeter_sys::host::parse_cpu_list;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::settings::cpu_list;

/// CPUs in the order in which threads get them. Written as `0,1` or `0-3`; in a workload one alone
/// may be a number, and an empty text is none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "Written", into = "String")]
#[schemars(with = "String")]
pub struct CpuList(pub Vec<u32>);

#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    One(u32),
    List(String),
}

impl FromStr for CpuList {
    type Err = String;

    /// Every part must be a CPU number or a range.
    fn from_str(text: &str) -> Result<CpuList, String> {
        match text.split(',').all(|part| !parse_cpu_list(part).is_empty()) {
            true => Ok(CpuList(parse_cpu_list(text))),
            false => Err(format!("`{text}` is not a list of CPUs such as 0,1 or 0-3")),
        }
    }
}

impl TryFrom<Written> for CpuList {
    type Error = String;

    fn try_from(written: Written) -> Result<CpuList, String> {
        match written {
            Written::One(cpu) => Ok(CpuList(vec![cpu])),
            Written::List(text) if text.is_empty() => Ok(CpuList::default()),
            Written::List(text) => text.parse(),
        }
    }
}

impl From<CpuList> for String {
    fn from(cpus: CpuList) -> String {
        cpu_list(&cpus.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_lists_are_taken_whole_or_not_at_all() {
        let cpus = |text: &str| text.parse::<CpuList>().map(|list| list.0);
        assert_eq!((cpus("1,0").unwrap(), cpus("0-2").unwrap()), (vec![1, 0], vec![0, 1, 2]));
        for wrong in ["", "x", "0,,1", "3-1", "0;1"] {
            assert!(cpus(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn workloads_write_a_list_a_number_or_nothing() {
        for (written, wanted) in [("3", "\"3\""), ("\"0-2\"", "\"0,1,2\""), ("\"\"", "\"\"")] {
            let cpus: CpuList = serde_json::from_str(written).unwrap();
            assert_eq!(serde_json::to_string(&cpus).unwrap(), wanted);
        }
    }
}
