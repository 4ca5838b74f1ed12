//! The schemas in `docs/schema`, which are those of the types.

use std::fs;

use anyhow::{Result, ensure};
use daqmeter_vm::shell::root;

fn all() -> [(&'static str, String); 2] {
    [
        ("run-record.v1.json", daqmeter_record::json_schema()),
        ("plan.v1.json", daqmeter_campaign::json_schema()),
    ]
}

pub(crate) fn write() -> Result<()> {
    let folder = root().join("docs/schema");
    fs::create_dir_all(&folder)?;
    for (name, generated) in all() {
        fs::write(folder.join(name), generated)?;
    }
    Ok(())
}

pub(crate) fn check() -> Result<()> {
    for (name, generated) in all() {
        let found = fs::read_to_string(root().join("docs/schema").join(name)).unwrap_or_default();
        let same = found == generated;
        ensure!(same, "docs/schema/{name} is not the types' schema: run cargo xtask schema");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_schemas_in_docs_are_those_of_the_types() {
        super::check().unwrap();
    }
}
