use super::*;

fn refused(text: &str) -> String {
    Scenario::parse(text, "test").unwrap_err().to_string()
}

fn check(text: &str, wanted: &str) {
    let found = refused(text);
    assert!(found.contains(wanted) && !found.contains('\n'), "{text}: {found}");
}

#[test]
fn mistakes_are_named_with_line_and_field() {
    for (text, wanted) in [
        ("[card]\nlinks = 3\nbananas = 1\n", "line 3 (`bananas = 1`)"),
        ("[trigger]\nrate = \"fast\"\n", "line 2 (`rate = \"fast\"`): `fast` is not a rate"),
        ("[card]\nring = \"lots\"\n", "`lots` is not a size"),
        ("[card]\nring = -1\n", "line 2 (`ring = -1`): `-1` is not a size"),
        ("[card]\nring = true\n", "line 2 (`ring = true`): expected a text such as"),
        ("[card]\nblock = \"3000B\"\n", "card.block"),
        ("[card]\nlinks = 25\n", "line 2 (`links = 25`): card.links: 25; 1 to 24"),
        ("[card]\nchannels = 8\nlinks = 4\n", "line 3 (`links = 4`): card.links: 4 x 8 channels"),
        ("[card]\nelinks = [1, 1]\n", "card.elinks"),
        (
            "[card]\npointer_gap = \"32MiB\"\n",
            "line 2 (`pointer_gap = \"32MiB\"`): card.pointer_gap",
        ),
        ("[busy]\nassert_below = \"65MiB\"\n", "busy.assert_below"),
        (
            "[busy]\nassert_below = \"30MiB\"\nrelease_above = \"20MiB\"\n",
            "line 2 (`assert_below = \"30MiB\"`): busy.assert_below",
        ),
        ("[[link]]\nlink = 3\n", "line 2 (`link = 3`): link[0].link"),
        ("[[link]]\nlink = 0\ndeficit = 1.0\n", "link[0].deficit"),
        ("[[link]]\nlink = 0\ndeficit = nan\n", "link[0].deficit"),
        ("[[fault]]\nkind = \"crc\"\nevery = 0\n", "fault[0].every"),
        ("[[fault]]\nkind = \"crc\"\nevery = 1\nelink = 9\n", "fault[0].elink: 0x009"),
        ("[card]\nttc = true\nblocks = \"replay\"\n", "cannot be replayed"),
        ("[trigger]\nsource = \"times\"\n", "trigger.file"),
        ("[publish]\ntransport = \"pigeon\"\n", "publish.transport"),
        ("name = \"a\\u001b[2Jb\"\n", "name: has control characters"),
        ("[card\n", "line 1"),
    ] {
        check(text, wanted);
    }
    let many: Vec<u8> = (0..40).collect();
    check(
        &format!("[card]\nlinks = 24\nelinks = {many:?}\n"),
        "960 E-links in a channel; at most 789",
    );
    assert!(
        Scenario::load("nothing-like-it").unwrap_err().to_string().contains("shipped ones are gbt")
    );
}

/// Issue 14: values that would hang, stall or kill are refused when the scenario is read.
#[test]
fn what_would_hang_or_kill_is_refused_where_it_stands() {
    for (text, wanted) in [
        (
            "[card]\nring = \"1TiB\"\n",
            "line 2 (`ring = \"1TiB\"`): card.ring: 1 TiB; 64 KiB to 64 GiB",
        ),
        (
            "[reader]\npages = 1000000000000\n",
            "line 2 (`pages = 1000000000000`): reader.pages: 1000000000000; 2 to 4096",
        ),
        (
            "[card]\ndma_rate = \"0\"\n",
            "line 2 (`dma_rate = \"0\"`): card.dma_rate: 0 B/s; 64 KiB/s to 1 TiB/s",
        ),
        (
            "[publish]\ndead_after = \"0s\"\n",
            "line 2 (`dead_after = \"0s\"`): publish.dead_after: 0 ns; 100 ms to 3600 s",
        ),
        (
            "[publish]\ncongestion = \"bbr9\"\n",
            "line 2 (`congestion = \"bbr9\"`): publish.congestion: `bbr9` cannot be had here",
        ),
        (
            "[[link]]\nlink = 0\n[[link]]\nlink = 0\n",
            "line 4 (`link = 0`): link[1].link: link 0 has a [[link]] already",
        ),
        (
            "[card]\nmode = \"full\"\nelinks = [0, 1]\n",
            "line 3 (`elinks = [0, 1]`): card.elinks: 2 E-links",
        ),
        (
            "[card]\nring = \"64GiB\"\ndevices = 64\nhuge_pages = true\n",
            "line 4 (`huge_pages = true`): card.huge_pages: the rings need 4 TiB, the pool has",
        ),
        (
            "[card]\nfifo = \"1GiB\"\ndma_rate = \"1MiB\"\n",
            "card.dma_rate: emptying the FIFO would take 1024 s",
        ),
    ] {
        check(text, wanted);
    }
}

/// Each number of a scenario, with a value below its bounds and one above.
#[test]
fn every_number_has_a_least_and_a_greatest_value() {
    let huge = "9000000000000000000";
    for (table, field, wrong) in [
        ("trigger", "rate", ["\"1e-9Hz\"", "\"1e300Hz\""]),
        ("card", "devices", ["0", "65"]),
        ("card", "channels", ["0", "9"]),
        ("card", "links", ["0", "25"]),
        ("card", "payload", ["0", "\"2MiB\""]),
        ("card", "block", ["0", "\"32KiB\""]),
        ("card", "ring", ["\"16KiB\"", huge]),
        ("card", "pointer_gap", ["-1", huge]),
        ("card", "fifo", ["0", huge]),
        ("card", "dma_rate", ["0", huge]),
        ("card", "timeout", ["\"0s\"", "\"2h\""]),
        ("busy", "assert_below", ["-1", huge]),
        ("busy", "release_above", ["0", huge]),
        ("reader", "poll", ["-1", "\"2s\""]),
        ("reader", "page", ["1", huge]),
        ("reader", "pages", ["1", huge]),
        ("reader", "timeout", ["-1", "\"2s\""]),
        ("publish", "dead_after", ["\"0s\"", "\"2h\""]),
        ("publish", "max_subscribers", ["0", huge]),
    ] {
        for value in wrong {
            let found = refused(&format!("[{table}]\n{field} = {value}\n"));
            assert!(found.starts_with("line 2 (`"), "{table}.{field} = {value}: {found}");
        }
    }
}

#[test]
fn a_long_file_and_a_device_without_end_are_no_scenarios() {
    let found = Scenario::load("/dev/zero").unwrap_err().to_string();
    assert!(found.contains("longer than 1 MiB"), "{found}");
}
