//! `daqmeter ab`: two sides alternately, until it is decided whether they differ.

mod arguments;
mod pairs;
mod shown;

use std::process::ExitCode;

use daqmeter_campaign::ab::{PATIENCE, Question, ask, serve};
use daqmeter_harness::StopFlag;

use crate::context::context;
use crate::interrupt;
use crate::output::{CANNOT_TELL, Ended, FAILED, Failure, emit};
use crate::recorder::{Lines, progress_bar};

pub(crate) use arguments::Arguments;
pub(crate) use pairs::SIDE;
use pairs::{Pair, pairs};
use shown::{Compared, Outcome, text};

pub(crate) fn side() -> Ended {
    serve(std::io::stdin().lock(), std::io::stdout().lock())
        .map_err(|why| format!("{SIDE} is started by daqmeter ab, not by hand: {why}"))?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn run(arguments: &Arguments) -> Ended {
    let pairs = pairs(arguments)?;
    let mut file = arguments.records.as_ref().map(Lines::open).transpose()?;
    let stop = interrupt::flag();
    let compared = compare(arguments, &pairs, &stop, file.as_mut())?;
    if !arguments.json {
        emit(&text(&compared, arguments.ignore, arguments.error))?;
    }
    refuse_unmeasured(&compared)?;
    Ok(exit_code(&compared))
}

fn compare(
    arguments: &Arguments,
    pairs: &[Pair],
    stop: &StopFlag,
    mut file: Option<&mut Lines>,
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
        file.as_mut().map_or(Ok(()), |file| file.write(line.as_bytes()))?;
        if arguments.json {
            emit(&line)?;
        }
        progress.inc(1);
        compared.push(found);
    }
    progress.finish_and_clear();
    Ok(compared)
}

/// Seed of all orders.
const SEED: u64 = 1;

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
        seed: SEED,
    };
    match ask(&question, stop) {
        Ok(answers) => Compared::of(pair, answers),
        Err(why) => Compared::without(pair, Outcome::NotMeasured, &why),
    }
}

fn refuse_unmeasured(compared: &[Compared]) -> Result<(), Failure> {
    let refused = compared.iter().filter(|one| one.outcome == Outcome::NotMeasured).count();
    match compared {
        _ if refused == 0 || interrupt::is_asked() => Ok(()),
        [Compared { reason: Some(why), .. }] => Err(why.into()),
        all => Err(format!("{refused} of {} points could not be measured", all.len()).into()),
    }
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
