//! The schemas in `docs/schema`, which are those of the types.

use std::fs;
use std::path::PathBuf;

use anyhow::Result;
use daqmeter_vm::shell::root;

fn all() -> [(PathBuf, String); 2] {
    let path = |name: &str| root().join("docs/schema").join(name);
    [
        (path("run-record.v1.json"), daqmeter_record::json_schema()),
        (path("plan.v1.json"), daqmeter_campaign::json_schema()),
    ]
}

pub(crate) fn write() -> Result<()> {
    Ok(all().iter().try_for_each(|(path, generated)| fs::write(path, generated))?)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_schemas_in_docs_are_those_of_the_types() {
        for (path, generated) in super::all() {
            let is_same = std::fs::read_to_string(&path).unwrap() == generated;
            assert!(is_same, "{} is not the types' schema: cargo xtask schema", path.display());
        }
    }
}
