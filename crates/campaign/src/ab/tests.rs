//! Whole comparisons. Sides are this test program, started again to run a test in `sides`.

use daqmeter_record::Workload;

use super::protocol::{Reply, VERSION};
use super::*;

const LONG: Duration = Duration::from_secs(60);

fn side(test: &str) -> AbSide {
    let mut request = SideRequest::new(Workload::new("null"), None);
    request.slice_us = 20;
    AbSide {
        program: std::env::current_exe().unwrap(),
        arguments: ["--exact", &format!("ab::tests::sides::{test}"), "--ignored", "--nocapture"]
            .map(str::to_owned)
            .into(),
        request,
    }
}

fn question(a: AbSide, b: AbSide) -> Question {
    let (sides, ignore, alpha) = ([a, b], 0.5, 0.01);
    Question { sides, ignore, alpha, budget: LONG, patience: LONG, seed: 1 }
}

fn asked(question: &Question) -> Result<Vec<Answer>, String> {
    ask(question, &StopFlag::default())
}

mod sides {
    use std::io::BufRead;

    use super::*;

    fn next() -> String {
        let mut line = String::new();
        std::io::stdin().lock().read_line(&mut line).unwrap();
        line
    }

    fn say(reply: &Reply) {
        println!("\n{}", serde_json::to_string(reply).unwrap());
    }

    fn is_ready(version: u32, stage: &str) {
        say(&Reply::Ready { version, stages: vec![(stage.to_owned(), 10)] });
        next();
        next();
    }

    #[test]
    #[ignore = "is a side"]
    fn serves() {
        println!();
        serve(std::io::stdin().lock(), std::io::stdout().lock()).unwrap();
    }

    #[test]
    #[ignore = "is a side"]
    fn prints_garbage() {
        println!("\n{{html}}");
        next();
        next();
    }

    #[test]
    #[ignore = "is a side"]
    fn crashes_at_a_slice() {
        is_ready(VERSION, "null");
        std::process::abort();
    }

    #[test]
    #[ignore = "is a side"]
    fn hangs_at_a_slice() {
        is_ready(VERSION, "null");
        std::thread::sleep(LONG);
    }

    #[test]
    #[ignore = "is a side"]
    fn speaks_another_version() {
        is_ready(VERSION + 1, "null");
    }

    #[test]
    #[ignore = "is a side"]
    fn has_another_stage() {
        is_ready(VERSION, "other");
    }

    #[test]
    #[ignore = "is a side"]
    fn takes_no_time() {
        is_ready(VERSION, "null");
        say(&Reply::Slice { ns: 0, is_disturbed: false });
        next();
    }

    #[test]
    #[ignore = "is a side"]
    fn says_how_it_is_shifted() {
        let request: SideRequest = serde_json::from_str(&next()).unwrap();
        let stack = std::env::var(process::SHIFT).unwrap().len();
        say(&Reply::Refused(format!("heap {} stack {stack}", request.shift_bytes)));
    }
}

#[test]
fn fresh_processes_lie_at_other_places_of_heap_and_stack() {
    let shifts = |seed: u64| {
        let test = "says_how_it_is_shifted";
        let question = Question { seed, ..question(side(test), side(test)) };
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
    let question = Question { ignore: 9.0, ..question(side("serves"), side("serves")) };
    let found = asked(&question).unwrap();
    let [answer] = &found[..] else { panic!("{found:?}") };
    assert_eq!((answer.stage.as_str(), answer.verdict), ("null", AbVerdict::Same), "{answer:?}");
    assert!(answer.blocks.len() >= 11 && answer.a_ns.is_some_and(|ns| ns > 0.0), "{answer:?}");
}

#[test]
fn each_side_that_goes_wrong_is_named_with_what_went_wrong() {
    for (bad, wanted) in [
        ("prints_garbage", "side B: `{html}` is not an answer of a side"),
        ("crashes_at_a_slice", "side B: ended before its work was done (signal: 6"),
        ("speaks_another_version", "speaks version 3 of the protocol"),
        ("has_another_stage", "A has the stages null, B has other"),
        ("takes_no_time", "side B: says that a slice took no time"),
    ] {
        let error = asked(&question(side("serves"), side(bad))).unwrap_err();
        assert!(error.contains(wanted) && !error.contains('\n'), "{bad}: {error}");
    }
    let patience = Duration::from_millis(300);
    let hangs = question(side("serves"), side("hangs_at_a_slice"));
    let error = asked(&Question { patience, ..hangs }).unwrap_err();
    assert!(error.contains("side B: did nothing for 0.3 s and was ended"), "{error}");
}

#[test]
fn programs_and_points_that_are_no_sides_are_named() {
    let program = |program: &str, arguments: &[&str]| {
        let arguments = arguments.iter().map(|one| (*one).to_owned()).collect();
        let side = AbSide { program: program.into(), arguments, ..side("serves") };
        asked(&question(side, self::side("serves"))).unwrap_err()
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
        let bad = AbSide { request: SideRequest::new(workload, None), ..side("serves") };
        let error = asked(&question(side("serves"), bad)).unwrap_err();
        assert!(error.starts_with("side B: ") && error.contains(wanted), "{error}");
    }
}

#[test]
fn at_the_budget_and_after_a_signal_there_is_what_was_measured() {
    let question = Question { ignore: 0.0, ..question(side("serves"), side("serves")) };
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
