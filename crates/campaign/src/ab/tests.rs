//! Whole comparisons. Sides are this test program, started again to run the test `side`.

use std::io::{BufRead, Read};

use daqmeter_record::Workload;

use super::protocol::{Reply, VERSION};
use super::*;

const LONG: Duration = Duration::from_secs(60);

fn serves(workload: Workload) -> AbSide {
    let mut request = SideRequest::new(workload, None);
    request.slice_us = 20;
    AbSide {
        program: std::env::current_exe().unwrap(),
        arguments: ["--exact", "ab::tests::side", "--ignored", "--nocapture"]
            .map(str::to_owned)
            .into(),
        request,
    }
}

fn null() -> AbSide {
    serves(Workload::new("null"))
}

/// A side that goes wrong in this way.
fn wrong(how: &str) -> AbSide {
    serves(Workload::new(how))
}

fn question(a: AbSide, b: AbSide) -> Question {
    let (sides, ignore, alpha) = ([a, b], 0.5, 0.01);
    Question { sides, ignore, alpha, budget: LONG, patience: LONG, seed: 1 }
}

fn asked(question: &Question) -> Result<Vec<Answer>, String> {
    ask(question, &StopFlag::default())
}

#[test]
#[ignore = "a program that other tests start"]
fn side() {
    let (mut stdin, mut line) = (std::io::stdin().lock(), String::new());
    let say = |reply: Reply| println!("\n{}", serde_json::to_string(&reply).unwrap());
    let ready =
        |version, stage: &str| say(Reply::Ready { version, stages: vec![(stage.to_owned(), 10)] });
    stdin.read_line(&mut line).unwrap();
    let request: SideRequest = serde_json::from_str(&line).unwrap();
    let how = request.workload.kind.as_str();
    match how {
        "garbage" => println!("\n{{html}}"),
        "crash" | "hang" | "no time" => ready(VERSION, "null"),
        "version" => ready(VERSION + 1, "null"),
        "stage" => ready(VERSION, "other"),
        "shift" => {
            let stack = std::env::var(process::SHIFT).unwrap().len();
            say(Reply::Refused(format!("heap {} stack {stack}", request.shift_bytes)));
        }
        _ => {
            println!();
            return serve(line.as_bytes().chain(stdin), std::io::stdout().lock()).unwrap();
        }
    }
    stdin.read_line(&mut line).unwrap();
    match how {
        "crash" => std::process::abort(),
        "hang" => std::thread::park(),
        "no time" => say(Reply::Slice(daqmeter_record::Slice::default())),
        _ => {}
    }
    stdin.read_line(&mut line).unwrap();
}

#[test]
fn fresh_processes_lie_at_other_places_of_heap_and_stack() {
    let shifts = |seed: u64| {
        let question = Question { seed, ..question(wrong("shift"), wrong("shift")) };
        let said = asked(&question).unwrap_err();
        let words = said.split_whitespace();
        let numbers: Vec<usize> = words.filter_map(|word| word.parse().ok()).collect();
        (numbers[0], numbers[1])
    };
    let found: Vec<(usize, usize)> = (1..=6).map(shifts).collect();
    let (heaps, stacks): (Vec<usize>, Vec<usize>) = found.iter().copied().unzip();
    for mut places in [heaps, stacks] {
        places.sort_unstable();
        places.dedup();
        assert!(places.len() >= 5 && places[4] < 4096, "{found:?}");
    }
    assert_eq!(shifts(1), found[0], "the same seed, the same places");
}

#[test]
fn a_side_against_itself_is_decided_and_every_block_is_kept() {
    let question = Question { ignore: 9.0, ..question(null(), null()) };
    let found = asked(&question).unwrap();
    let [answer] = &found[..] else { panic!("{found:?}") };
    assert_eq!((answer.stage.as_str(), answer.verdict), ("null", AbVerdict::Same), "{answer:?}");
    assert!(answer.blocks.len() >= 11 && answer.a_ns.is_some_and(|ns| ns > 0.0), "{answer:?}");
}

#[test]
fn each_side_that_goes_wrong_is_named_with_what_went_wrong() {
    for (bad, wanted) in [
        ("garbage", "side B: `{html}` is not an answer of a side"),
        ("crash", "side B: ended before its work was done (signal: 6"),
        ("version", "speaks version 4 of the protocol"),
        ("stage", "A has the stages null, B has other"),
        ("no time", "side B: says that a slice took no time"),
    ] {
        let error = asked(&question(null(), wrong(bad))).unwrap_err();
        assert!(error.contains(wanted) && !error.contains('\n'), "{bad}: {error}");
    }
    let patience = Duration::from_millis(300);
    let hangs = question(null(), wrong("hang"));
    let error = asked(&Question { patience, ..hangs }).unwrap_err();
    assert!(error.contains("side B: did nothing for 0.3 s and was ended"), "{error}");
}

#[test]
fn programs_and_points_that_are_no_sides_are_named() {
    let program = |program: &str, arguments: &[&str]| {
        let arguments = arguments.iter().map(|one| (*one).to_owned()).collect();
        let side = AbSide { program: program.into(), arguments, ..null() };
        asked(&question(side, null())).unwrap_err()
    };
    let ended = program("true", &[]);
    assert!(ended.contains("side A: ended before its work was done (exit status: 0)"), "{ended}");
    assert!(program("/nowhere/x", &[]).contains("side A: cannot start /nowhere/x"));
    let complains = program("sh", &["-c", "echo unknown verb >&2; exit 2"]);
    assert!(complains.ends_with("(exit status: 2); it said: unknown verb"), "{complains}");
    for (workload, wanted) in [
        (Workload::new("nothing"), "no engine is named `nothing`"),
        (Workload::new("convert").with("samples", "x"), "samples"),
        (Workload::new("digitizer").with("devices", "/dev/none0"), "none0"),
    ] {
        let error = asked(&question(null(), serves(workload))).unwrap_err();
        assert!(error.starts_with("side B: ") && error.contains(wanted), "{error}");
    }
}

#[test]
fn at_the_budget_and_after_a_signal_there_is_what_was_measured() {
    let question = Question { ignore: 0.0, ..question(null(), null()) };
    let budget = Duration::from_millis(1);
    let found = asked(&Question { budget, ..question.clone() }).unwrap();
    let [answer] = &found[..] else { panic!("{found:?}") };
    assert_eq!((answer.verdict, answer.blocks.len()), (AbVerdict::Undecided, 1));
    assert!(answer.visible.is_none());
    let stop = StopFlag::default();
    stop.set();
    assert_eq!(ask(&question, &stop).unwrap()[0].blocks[0].log_ratio, None);
}

#[test]
fn each_of_the_four_answers_is_reached() {
    for (ratio, noise, blocks, wanted) in [
        (1.0, 0.001, 40, AbVerdict::Same),
        (1.05, 0.001, 40, AbVerdict::Slower),
        (0.95, 0.001, 40, AbVerdict::Faster),
        (1.0, 0.1, 40, AbVerdict::Undecided),
        (1.05, 0.001, 10, AbVerdict::Undecided),
    ] {
        let mut tracked = Tracked::new("copy".to_owned(), 3, 0.01, 0.01);
        for at in 0..blocks {
            let log_ratio = Some(f64::ln(ratio) + noise * (f64::from(at % 5) - 2.0));
            tracked.add(Block { log_ratio, a_ns: 10.0, b_ns: 10.0 * ratio, ..Block::default() });
        }
        let found = tracked.answer();
        assert_eq!((found.verdict, found.a_ns), (wanted, Some(10.0)), "{ratio} {noise} {blocks}");
    }
}

#[test]
fn points_are_read_as_they_are_written() {
    let found =
        SideRequest::parse("copy block_bytes=4KiB path=pread cold=true rate=1.5 cpu=1").unwrap();
    let wanted = "copy block_bytes=4096 cold=true path=pread rate=1.5";
    assert_eq!((found.workload.to_string().as_str(), found.cpu), (wanted, Some(1)));
    for (text, wanted) in [
        ("", "name of an engine"),
        ("copy block", "`block` is not a parameter"),
        ("copy cpu=x", "no CPU number"),
        ("copy block_bytes=4Kx", "block_bytes: "),
        ("copy rate=NaN", "rate: NaN is not a finite number"),
    ] {
        assert!(SideRequest::parse(text).unwrap_err().contains(wanted), "{text}");
    }
}
