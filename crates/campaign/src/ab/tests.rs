//! Whole comparisons. Sides are this test program, started again to run a test in `sides`.

use std::os::fd::AsFd;

use daqmeter_record::Workload;
use daqmeter_sys::turns::Page;

use super::protocol::{Reply, VERSION, WRITER, set_fault};
use super::*;

const LONG: Duration = Duration::from_secs(60);

fn side(test: &str) -> AbSide {
    let mut request = SideRequest::new(Workload::new("null"), None);
    request.slice_us = 20;
    AbSide::Point {
        program: std::env::current_exe().unwrap(),
        arguments: ["--exact", &format!("ab::tests::sides::{test}"), "--ignored", "--nocapture"]
            .map(str::to_owned)
            .into(),
        request,
    }
}

fn question(a: AbSide, b: AbSide) -> Question {
    Question {
        sides: [a, b],
        ignore: 0.5,
        alpha: 0.01,
        budget: LONG,
        patience: LONG,
        seed: 1,
        switch: None,
    }
}

fn asked(question: &Question) -> Result<Found, String> {
    ask(question, &StopFlag::default(), |_| ())
}

mod sides {
    use super::*;

    fn page() -> std::fs::File {
        std::io::stdin().as_fd().try_clone_to_owned().unwrap().into()
    }

    fn say(text: &str) {
        let page = Page::of_file(page()).unwrap();
        page.set_text(text).unwrap();
        page.signal(WRITER);
    }

    fn wait_for_ever() {
        let page = Page::of_file(page()).unwrap();
        page.wait(100, 0, LONG);
    }

    fn ready(version: u32, stage: &str) -> String {
        let stages = vec![(stage.to_owned(), 10)];
        serde_json::to_string(&Reply::Ready { version, schema: 1, stages }).unwrap()
    }

    #[test]
    #[ignore = "is a side"]
    fn serves() {
        serve(page()).unwrap();
    }

    #[test]
    #[ignore = "is a side"]
    fn prints_garbage() {
        say("<html>");
        wait_for_ever();
    }

    #[test]
    #[ignore = "is a side"]
    fn crashes_when_it_has_the_turn() {
        say(&ready(VERSION, "null"));
        let page = Page::of_file(page()).unwrap();
        let own = [0, 16].into_iter().cycle();
        for word in own {
            if page.wait(word, 0, Duration::from_millis(1)) {
                break;
            }
        }
        std::process::abort();
    }

    #[test]
    #[ignore = "is a side"]
    fn hangs_when_it_has_the_turn() {
        say(&ready(VERSION, "null"));
        wait_for_ever();
    }

    #[test]
    #[ignore = "is a side"]
    fn speaks_another_version() {
        say(&ready(VERSION + 1, "null"));
        wait_for_ever();
    }

    #[test]
    #[ignore = "is a side"]
    fn has_another_stage() {
        say(&ready(VERSION, "other"));
        wait_for_ever();
    }

    #[test]
    #[ignore = "is a side"]
    fn says_that_its_work_took_no_time() {
        let page = Page::of_file(page()).unwrap();
        say(&ready(VERSION, "null"));
        while !page.wait(0, 0, LONG) && !page.wait(16, 0, LONG) {}
        while let Some(_step) = protocol::next_step(&page) {
            protocol::finish_step(&page, Default::default());
        }
        page.signal(WRITER);
        wait_for_ever();
    }

    #[test]
    #[ignore = "is a side"]
    fn says_how_it_is_shifted() {
        let page = Page::of_file(page()).unwrap();
        let request: SideRequest = serde_json::from_str(&page.text().unwrap()).unwrap();
        let stack = std::env::var(process::SHIFT).unwrap().len();
        set_fault(&page);
        let shifts = format!("heap {} stack {stack}", request.shift_bytes);
        say(&serde_json::to_string(&Reply::Refused(shifts)).unwrap());
    }

    #[test]
    #[ignore = "is a side"]
    fn finds_wrong_bytes() {
        let page = Page::of_file(page()).unwrap();
        set_fault(&page);
        say(&serde_json::to_string(&Reply::Refused("byte 3 is 0, not 1".to_owned())).unwrap());
    }
}

#[test]
fn fresh_processes_lie_at_other_places_of_heap_and_stack() {
    let shifts = |seed: u64| {
        let test = "says_how_it_is_shifted";
        let question = Question { seed, ..question(side(test), side(test)) };
        let said = asked(&question).unwrap_err();
        let numbers = said.split_whitespace();
        let numbers: Vec<usize> = numbers.filter_map(|word| word.parse().ok()).collect();
        assert_eq!(numbers.len(), 2, "{said}");
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
    let [answer] = &found.answers[..] else { panic!("{found:?}") };
    assert_eq!((answer.stage.as_str(), answer.verdict), ("null", AbVerdict::Same), "{answer:?}");
    assert!(answer.blocks.len() >= 11 && answer.sum(|block| block.groups) >= 11, "{answer:?}");
    assert!(answer.operations > 1 && answer.a_ns.is_some_and(|ns| ns > 0.0));
    assert_eq!(found.notes, [""; 0]);
}

#[test]
fn each_side_that_goes_wrong_is_named_with_what_went_wrong() {
    for (bad, wanted) in [
        ("prints_garbage", "side B: `<html>` is not an answer of a side"),
        ("crashes_when_it_has_the_turn", "side B: ended before its work was done (signal: 6"),
        ("speaks_another_version", "speaks version 2 of the protocol"),
        ("has_another_stage", "A has the stages null, B has other"),
        ("finds_wrong_bytes", "side B: byte 3 is 0, not 1"),
    ] {
        let error = asked(&question(side("serves"), side(bad))).unwrap_err();
        assert!(error.contains(wanted), "{bad}: {error}");
        assert!(!error.contains('\n'), "{error}");
    }
    let error = asked(&question(side("says_that_its_work_took_no_time"), side("serves")));
    assert!(error.unwrap_err().contains("side A: says that a slice took no time"));
}

#[test]
fn a_side_that_hangs_is_named_and_ended() {
    let patience = Duration::from_millis(300);
    for (a, b, wanted) in [
        ("hangs_when_it_has_the_turn", "serves", "side A: did nothing for"),
        ("serves", "hangs_when_it_has_the_turn", "side B: did nothing for"),
    ] {
        let error = asked(&Question { patience, ..question(side(a), side(b)) }).unwrap_err();
        assert!(error.contains(wanted) && error.contains("was ended"), "{error}");
    }
}

#[test]
fn what_is_no_side_is_named() {
    let program = |program: &str| AbSide::Point {
        program: program.into(),
        arguments: Vec::new(),
        request: SideRequest::new(Workload::new("null"), None),
    };
    let error = |program| asked(&question(program, side("serves"))).unwrap_err();
    assert!(
        error(program("true")).contains("side A: ended before its work was done (exit status: 0)")
    );
    assert!(error(program("/nowhere/x")).contains("side A: cannot start /nowhere/x"));
    let complains = AbSide::Point {
        program: "sh".into(),
        arguments: ["-c", "echo unknown verb >&2; exit 2"].map(str::to_owned).into(),
        request: SideRequest::new(Workload::new("null"), None),
    };
    assert!(error(complains).ends_with("(exit status: 2); it said: unknown verb"));
}

#[test]
fn at_the_budget_it_is_undecided_and_says_what_is_missing() {
    let budget = Duration::from_millis(1);
    let found = asked(&Question { budget, ..question(side("serves"), side("serves")) }).unwrap();
    let [answer] = &found.answers[..] else { panic!("{found:?}") };
    assert_eq!((answer.verdict, answer.blocks.len()), (AbVerdict::Undecided, 1));
    assert!(answer.visible.is_none() && answer.missing_s.is_some_and(|seconds| seconds > 0.0));
}

#[test]
fn commands_are_compared_as_a_whole() {
    let command = |line: &str| AbSide::Command { line: line.to_owned(), cpu: None };
    // The other side has twenty processes, this one has none.
    let slower =
        command("for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do env true; done");
    let found = asked(&question(command(":"), slower)).unwrap();
    assert_eq!(found.answers[0].verdict, AbVerdict::Slower, "{found:?}");
    let error = asked(&question(command(":"), command("exit 3"))).unwrap_err();
    assert!(error.contains("side B: `exit 3` failed (exit status: 3)"), "{error}");
    let mixed = asked(&question(command(":"), side("serves"))).unwrap_err();
    assert!(mixed.contains("cannot be compared with a point"), "{mixed}");
}

#[test]
fn a_switch_is_put_to_both_values() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("setting");
    std::fs::write(&path, "x").unwrap();
    let switch = Switch { path: path.clone(), values: ["slow".to_owned(), "fast".to_owned()] };
    let line = format!(
        "if [ $(cat {}) = slow ]; then for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16; do env true; done; fi",
        path.display()
    );
    let command = || AbSide::Command { line: line.clone(), cpu: None };
    let found = asked(&Question { switch: Some(switch), ..question(command(), command()) });
    assert_eq!(found.unwrap().answers[0].verdict, AbVerdict::Faster);
}

#[test]
fn who_asks_to_stop_gets_what_there_is() {
    let stop = StopFlag::default();
    let asks = stop.clone();
    let question = Question { ignore: 0.0, ..question(side("serves"), side("serves")) };
    let found = ask(&question, &stop, |_| asks.set()).unwrap();
    assert_eq!(found.answers[0].blocks.len(), 1);
}
