//! Evaluation of a study's expressions by records.

use std::collections::BTreeMap;

use daqmeter_record::study::{Basis, Derived, Measured, StudyFinding, StudyLine};
use daqmeter_record::{RunRecord, conditions};

use super::expression::{Expression, Number, Operation, Select};
use super::file::{LineSpec, StudyFile};
use super::finding::FindingSpec;
use super::formula::FormulaInputs;

pub(super) struct Evaluation<'a> {
    file: &'a StudyFile,
    records: &'a [RunRecord],
    inputs: FormulaInputs<'a>,
}

impl<'a> Evaluation<'a> {
    pub(super) fn new(file: &'a StudyFile, records: &'a [RunRecord]) -> Evaluation<'a> {
        let (rings, perf) = (file.rings.as_ref(), &file.perf);
        let inputs = FormulaInputs { rings, perf, runs: Default::default() };
        Evaluation { file, records, inputs }
    }

    pub(super) fn finding(&self, finding: &FindingSpec) -> StudyFinding {
        finding.judged(self.records, &|expression| self.number(expression, Some(&finding.values)))
    }

    pub(super) fn line(&self, line: &LineSpec) -> StudyLine {
        let of = |expression: &Expression| self.number(expression, None);
        let plain = |expression| {
            let number = of(expression).filter(|number| number.value.is_finite())?;
            assert_eq!(number.basis, None, "{}: a model uses no records", line.row);
            Some(number.value)
        };
        let derived = line.derived.as_ref().and_then(|derived| {
            let from = plain(&derived.of)?;
            let to = derived.to.as_ref().map_or(Some(from), plain)?;
            Some(Derived::between(from, to, &derived.how))
        });
        StudyLine {
            table: line.table.clone(),
            row: line.row.clone(),
            published: line.published.clone(),
            derived,
            model: line.model.as_ref().and_then(plain),
            measured: line.measured.as_ref().and_then(of).and_then(Number::measured),
            is_of_host: line.of_host,
            is_fitted: line.fitted,
            unit: line.unit.clone(),
        }
    }

    /// Value of an expression; `None` where records are missing. `locals` take precedence over
    /// names of the file.
    fn number(
        &self,
        expression: &Expression,
        locals: Option<&BTreeMap<String, Expression>>,
    ) -> Option<Number> {
        let number = |expression: &Expression| self.number(expression, locals);
        let folded = |all: &[Expression], fold: fn(f64, f64) -> f64| {
            let mut all = all.iter().map(number);
            let first = all.next()??;
            all.try_fold(first, |one, other| {
                let other = other?;
                Some(one.with(other, fold(one.value, other.value)))
            })
        };
        let operation = match expression {
            Expression::Number(value) => return Some(Number::plain(*value)),
            Expression::Name(name) => {
                // `l1 = "l1"` takes the file's value of that name.
                let is_own =
                    |local: &&Expression| matches!(local, Expression::Name(own) if own == name);
                let local = locals.and_then(|all| all.get(name)).filter(|local| !is_own(local));
                let named = local.or(self.file.value.get(name));
                return number(named.unwrap_or_else(|| panic!("no value `{name}`")));
            }
            Expression::Operation(operation) => operation.as_ref(),
        };
        match operation {
            Operation::Sum(all) => folded(all, |one, other| one + other),
            Operation::Product(all) => folded(all, |one, other| one * other),
            Operation::Min(all) => folded(all, f64::min),
            Operation::Max(all) => folded(all, f64::max),
            Operation::Mean(all) => {
                let sum = folded(all, |one, other| one + other)?;
                Some(Number { value: sum.value / all.len() as f64, ..sum })
            }
            Operation::Ratio(both) => folded(both, |one, other| one / other),
            Operation::Difference(both) => folded(both, |one, other| one - other),
            Operation::Processor(of) => {
                Some(Number { basis: Some(Basis::Measured), ..number(of)? })
            }
            Operation::Of(name, statistic) => {
                let select = self.file.records.get(name);
                let select = select.unwrap_or_else(|| panic!("no records `{name}`"));
                let record = self.record(select)?;
                let found = Measured::over([record], statistic.of(record)?)?;
                let Measured { value, basis, is_disturbed } = found;
                Some(Number { value, basis: Some(basis), is_disturbed })
            }
            Operation::Formula(formula) => formula.value(&self.inputs).map(Number::plain),
        }
    }

    /// Returns the record of a point: of several, the one with the median wall time among those of
    /// a quiet host, if there are any; or the largest one. Failed and waived runs do not count.
    fn record(&self, select: &Select) -> Option<&'a RunRecord> {
        let mut found: Vec<&RunRecord> =
            self.records.iter().filter(|record| select.takes(record)).collect();
        if select.largest {
            return found.into_iter().max_by_key(|record| (record.lanes.len(), record.wall_ns));
        }
        let is_quiet = |record: &&RunRecord| !conditions::is_disturbed(record);
        if found.iter().any(is_quiet) {
            found.retain(is_quiet);
        }
        found.sort_by_key(|record| record.wall_ns);
        found.get(found.len() / 2).copied()
    }
}
