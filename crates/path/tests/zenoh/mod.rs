//! Blocks over Zenoh if it is built in; else the message that tells the way to build it.

#[cfg(not(feature = "zenoh"))]
#[test]
fn a_path_over_zenoh_says_how_to_build_it() {
    let text = super::text(super::MEMORY, &["kind = \"zenoh\""], super::READ);
    let error = daqmeter_path::Path::parse(&text, "a.toml").unwrap_err();
    assert_eq!(
        error.to_string(),
        "a.toml:8: stage 1: kind: this daqmeter was built without zenoh: build it with --features zenoh"
    );
}

#[cfg(feature = "zenoh")]
mod built_in {
    use daqmeter_path::{Path, PathRequest};

    use super::super::{BLOCKS, MEMORY, READ, fault, ran, record, text};

    #[test]
    fn every_block_comes_and_its_bytes_are_compared_over_tcp_and_through_shared_memory() {
        for stage in ["kind = \"zenoh\"", "kind = \"zenoh\"\nshared_memory = true"] {
            for block in ["4KiB", "1MiB"] {
                let text = text(MEMORY, &[stage, "kind = \"checksum\""], READ);
                let record = ran(&text.replace("4KiB\"\nbuffers", &format!("{block}\"\nbuffers")));
                let run = record.path.unwrap();
                assert_eq!((run.blocks, run.verified_blocks), (BLOCKS, BLOCKS), "{stage} {block}");
                // Zenoh's own threads are rows behind those of the path.
                let parts: Vec<&str> = run.threads.iter().map(|one| one.part.as_str()).collect();
                assert_eq!(parts[1..3], ["zenoh out", "zenoh in"]);
                assert_eq!(parts[5..], ["zenoh send", "zenoh receive"]);
                assert!(run.threads[5..].iter().all(|thread| thread.element == 1));
            }
        }
    }

    #[test]
    fn what_zenoh_drops_is_a_loss_of_its_stream_or_fails_a_path_that_must_lose_nothing() {
        // More than sockets and Zenoh hold, and the stage behind takes a block in a millisecond.
        const MANY: u64 = 1000;
        let stages = ["kind = \"zenoh\"\ncongestion = \"drop\"", "kind = \"wait\"\ntime = \"1ms\""];
        let lossy = text(MEMORY, &stages, READ)
            .replace("4KiB\"\nbuffers", "32KiB\"\nbuffers")
            .replace("[source]", "lossless = false\n[source]");
        let record_of = |text: &str| {
            let folder = tempfile::tempdir().unwrap();
            record(folder.path(), text, |request| request.blocks = Some(MANY))
        };
        let counted = record_of(&lossy);
        assert!(counted.outcome.is_ok(), "{:?}", fault(&counted));
        let ledger = &counted.ledgers[0];
        let lost = ledger.losses["dropped by Zenoh"];
        assert!(ledger.closes() && lost > 0, "{ledger}");
        assert_eq!((ledger.issued, ledger.delivered + lost), (MANY, MANY));
        let run = counted.path.as_ref().unwrap();
        assert_eq!(run.verified_blocks, ledger.delivered);
        let failed = record_of(&lossy.replace("lossless = false", "lossless = true"));
        let fault = fault(&failed);
        assert!(fault.contains("dropped by Zenoh, 1 so far"), "{fault}");
        assert!(failed.ledgers[0].closes(), "{}", failed.ledgers[0]);
    }

    #[test]
    fn a_publisher_that_waits_loses_nothing_before_a_slow_stage() {
        let stages = ["kind = \"zenoh\"", "kind = \"wait\"\ntime = \"1ms\""];
        let text = text(MEMORY, &stages, READ).replace("4KiB\"\nbuffers", "1MiB\"\nbuffers");
        let record = ran(&text);
        assert_eq!(record.path.unwrap().verified_blocks, BLOCKS);
        assert_eq!(record.ledgers[0].lost(), 0);
    }

    /// The element behind Zenoh ends first: no thread waits for ever, and the ledger closes.
    #[test]
    fn a_program_behind_zenoh_that_dies_ends_the_path_in_a_line() {
        let stages =
            ["kind = \"zenoh\"", "kind = \"program\"\ncommand = [\"head\", \"-c\", \"20000\"]"];
        let folder = tempfile::tempdir().unwrap();
        let endless = |request: &mut PathRequest| request.blocks = None;
        let record = record(folder.path(), &text(MEMORY, &stages, READ), endless);
        let fault = fault(&record);
        assert!(fault.contains("head") && !fault.contains('\n'), "{fault}");
        assert!(record.ledgers[0].closes(), "{}", record.ledgers[0]);
    }

    #[test]
    fn what_zenoh_does_not_take_is_named() {
        for (stages, wanted) in [
            (
                &["kind = \"zenoh\"\ncongestion = \"wait\""][..],
                "stage 1: congestion: unknown variant `wait`, expected `block` or `drop`",
            ),
            (
                &["kind = \"zenoh\"", "kind = \"zenoh\""],
                "stage 2: kind: one stage of a path may go over Zenoh",
            ),
            (&["kind = \"zenoh\"\nthreads = 2"], "stage 1: threads: "),
        ] {
            let error = Path::parse(&text(MEMORY, stages, READ), "a.toml").unwrap_err();
            assert!(error.to_string().contains(wanted), "{error}");
        }
    }
}
