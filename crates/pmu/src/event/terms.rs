//! The terms of a PMU's event, `hnf_mc_reqs,nodeid=0x24`, as words of its configuration.

use daqmeter_harness::Fault;
use daqmeter_record::units::joined;

use super::{MAX_NAMED, OnMesh, named_like, wrong};
use crate::sysfs::{Alias, Pmu, parse_number};

pub(super) struct Terms<'a> {
    text: &'a str,
    pmu: &'a Pmu,
    pub(super) words: [u64; 3],
    pub(super) alias: Option<&'a Alias>,
}

impl<'a> Terms<'a> {
    /// Returns the words for terms; a bare name is an event of the PMU or a field of one bit.
    pub(super) fn of(text: &'a str, pmu: &'a Pmu, terms: &str) -> Result<Terms<'a>, Fault> {
        let mut all = Terms { text, pmu, words: [0; 3], alias: None };
        let split = || terms.split(',').map(str::trim).filter(|term| !term.is_empty());
        for alias in split().filter_map(|term| pmu.event(term)) {
            all.alias = Some(alias);
            all.apply_alias(alias, terms)?;
        }
        split().filter(|term| pmu.event(term).is_none()).try_for_each(|term| all.apply(term))?;
        Ok(all)
    }

    fn apply_alias(&mut self, alias: &Alias, given: &str) -> Result<(), Fault> {
        let is_given = |field: &str| {
            let mut terms = given.split(',').filter_map(|term| term.trim().split_once('='));
            terms.any(|(name, _)| name == field)
        };
        for term in alias.terms.split(',').map(str::trim) {
            match term.strip_suffix("=?") {
                Some(field) if !is_given(field) => return Err(self.no_value(field)),
                Some(_) => {}
                None => self.apply(term)?,
            }
        }
        Ok(())
    }

    fn apply(&mut self, term: &str) -> Result<(), Fault> {
        if let Some((field, value)) = term.split_once('=') {
            return self.set(field, value);
        }
        match self.pmu.format(term) {
            Some(format) if format.bits() == 1 => self.set(term, "1"),
            Some(_) => Err(self.no_value(term)),
            None => Err(self.no_term(term)),
        }
    }

    fn set(&mut self, field: &str, value: &str) -> Result<(), Fault> {
        let value = parse_number(value).ok_or_else(|| self.no_value(field))?;
        let mut words = ["config", "config1", "config2"].iter();
        if let Some(word) = words.position(|name| *name == field) {
            self.words[word] = value;
            return Ok(());
        }
        let format = self.pmu.format(field).ok_or_else(|| self.no_term(field))?;
        let placed = format.place(value, &mut self.words);
        placed.map_err(|error| wrong(self.text, &format!(": {error}")))
    }

    fn no_value(&self, term: &str) -> Fault {
        wrong(self.text, &format!(": {term} needs a value, {term}=NUMBER"))
    }

    fn no_term(&self, term: &str) -> Fault {
        let near = joined(named_like(self.pmu, term).take(MAX_NAMED), ", ");
        let fields = self.pmu.formats.iter().map(|format| format.name.as_str());
        let fields = || format!("its fields are {}", joined(fields, ", ").unwrap_or_default());
        let hint = near.map_or_else(fields, |near| format!("near are {near}"));
        let pmu = &self.pmu.name;
        wrong(self.text, &format!(": {pmu} has neither an event nor a field `{term}`; {hint}"))
    }
}

/// Reads the fields of an arm-cmn event back, and adds `bynodeid` to `nodeid`. Without it the
/// driver would ignore the node and count all of the type (arm-cmn.rst). The published commands
/// relied on an older driver.
pub(super) fn on_mesh(
    text: &str,
    pmu: &Pmu,
    words: &mut [u64; 3],
    warnings: &mut Vec<String>,
) -> Option<OnMesh> {
    let field = |name: &str, words: &[u64; 3]| pmu.format(name).map(|format| format.value(words));
    let bynodeid = pmu.format("bynodeid")?;
    let node_id = field("nodeid", words)?;
    if node_id != 0 && bynodeid.value(words) == 0 {
        warnings.push(format!(
            "`{text}`: {} ignores nodeid without bynodeid=1 and would add up all nodes of the type; bynodeid=1 was added",
            pmu.name
        ));
        bynodeid.place(1, words).ok()?;
    }
    let single = bynodeid.value(words) == 1;
    let narrow = |value: u64| u16::try_from(value).ok();
    Some(OnMesh {
        type_code: narrow(field("type", words)?)?,
        event_id: field("eventid", words)?,
        occup_id: field("occupid", words).unwrap_or(0),
        node_id: if single { narrow(node_id) } else { None },
        wp_device: field("wp_dev_sel", words).unwrap_or(0),
        wp_group: field("wp_grp", words).unwrap_or(0),
    })
}
