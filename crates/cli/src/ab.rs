//! `daqmeter ab`: two sides alternately, until it is decided whether they differ.

mod arguments;
mod pairs;
mod shown;

use std::process::ExitCode;

use daqmeter_campaign::ab::{PATIENCE, Question, ask, serve};
use daqmeter_harness::StopFlag;

use crate::interrupt;
use crate::lines::Lines;
use crate::measure::context;
use crate::named::Appended;
use crate::output::{CANNOT_TELL, FAILED, Failure, emit};
use crate::recorder::progress_bar;

pub(crate) use arguments::Arguments;
pub(crate) use pairs::SIDE;
use pairs::{Pair, pairs};
use shown::{Compared, Outcome, text};

pub(crate) fn side() -> Result<ExitCode, Failure> {
    serve(std::io::stdin().lock(), std::io::stdout().lock()).map_err(|why| {
        Failure::refused(format!("{SIDE} is started by daqmeter ab, not by hand: {why}"))
    })?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    check(arguments)?;
    let pairs = pairs(arguments)?;
    let mut record = Record::open(arguments.records.as_ref())?;
    let stop = interrupt::stop_flag();
    let compared = compare(arguments, &pairs, &stop, &mut record)?;
    if let ([one], false) = (&compared[..], interrupt::is_asked())
        && one.outcome == Outcome::NotMeasured
    {
        return Err(Failure::refused(one.reason.as_deref().unwrap_or("it was not measured")));
    }
    if !arguments.json {
        emit(&text(&compared, arguments.ignore, arguments.error))?;
    }
    refuse_refused(&compared)?;
    record.finish()?;
    Ok(interrupt::exit_code(exit_code(&compared)))
}

fn check(arguments: &Arguments) -> Result<(), Failure> {
    if arguments.budget.is_zero() {
        return Err(Failure::refused("--budget 0s decides nothing; 1s or more is wanted"));
    }
    if arguments.error <= 0.0 || arguments.error >= 0.5 {
        return Err(Failure::refused("--error is a chance above 0% and below 50%"));
    }
    Ok(())
}

fn compare(
    arguments: &Arguments,
    pairs: &[Pair],
    stop: &StopFlag,
    record: &mut Record,
) -> Result<Vec<Compared>, Failure> {
    let context = context();
    let progress = progress_bar(pairs.len(), !arguments.json);
    let mut compared = Vec::new();
    for pair in pairs {
        if stop.is_set() {
            break;
        }
        progress.set_message(daqmeter_record::sanitise::text(&pair.point).into_owned());
        let found = one(arguments, pair, pairs.len(), stop);
        let line = found.line(arguments, &context)?;
        record.keep(&line)?;
        if arguments.json {
            emit(&line)?;
        }
        progress.inc(1);
        compared.push(found);
    }
    progress.finish_and_clear();
    Ok(compared)
}

fn one(arguments: &Arguments, pair: &Pair, of: usize, stop: &StopFlag) -> Compared {
    if let Some(why) = &pair.left_out {
        return Compared::without(pair, Outcome::LeftOut, why);
    }
    let question = Question {
        sides: pair.sides.clone(),
        ignore: arguments.ignore,
        // Any answer may be wrong: each gets its share of the error.
        alpha: arguments.error / of as f64,
        budget: arguments.budget,
        patience: PATIENCE.max(arguments.budget),
        seed: arguments.seed,
    };
    match ask(&question, stop) {
        Ok(answers) => Compared::of(pair, answers),
        Err(why) => Compared::without(pair, Outcome::NotMeasured, &why),
    }
}

struct Record {
    file: Option<Lines>,
    written: Vec<u8>,
}

impl Record {
    fn open(path: Option<&Appended>) -> Result<Record, Failure> {
        Ok(Record { file: path.map(Lines::open).transpose()?, written: Vec::new() })
    }

    fn keep(&mut self, line: &str) -> Result<(), Failure> {
        if let Some(file) = &mut self.file {
            file.write(line.as_bytes())?;
            self.written.extend(line.as_bytes());
        }
        Ok(())
    }

    fn finish(&self) -> Result<(), Failure> {
        let written = &self.written;
        let file = self.file.as_ref();
        file.map_or(Ok(()), |file| file.finish(|| written.clone()))
    }
}

fn refuse_refused(compared: &[Compared]) -> Result<(), Failure> {
    let refused = compared.iter().filter(|one| one.outcome == Outcome::NotMeasured).count();
    if refused == 0 || interrupt::is_asked() {
        return Ok(());
    }
    let of = compared.len();
    Err(Failure::refused(format!("{refused} of {of} points could not be measured")))
}

fn exit_code(compared: &[Compared]) -> ExitCode {
    let any = |outcome| compared.iter().any(|one| one.outcome == outcome);
    if any(Outcome::Different) {
        ExitCode::from(FAILED)
    } else if any(Outcome::Undecided) || !any(Outcome::Same) {
        ExitCode::from(CANNOT_TELL)
    } else {
        ExitCode::SUCCESS
    }
}
