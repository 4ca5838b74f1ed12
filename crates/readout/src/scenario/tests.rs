use super::*;

#[test]
fn what_ships_is_valid_and_an_empty_file_too() {
    for (name, text) in Scenario::SHIPPED.files {
        assert_eq!(Scenario::parse(text, name).unwrap().name, *name);
    }
    let scenario = Scenario::parse("", "empty").unwrap();
    let elinks = scenario.elinks(0, 0);
    let numbers: Vec<u16> = elinks.iter().map(|elink| elink.elink.number()).collect();
    assert_eq!(
        (numbers.len(), numbers[0], numbers[7], numbers[8], numbers[23]),
        (24, 0x008, 0x024, 0x048, 0x0a4)
    );
}

#[test]
fn thresholds_follow_the_ring_as_in_the_published_set_up() {
    let scenario = Scenario::parse("[card]\nring = \"1GiB\"\n", "").unwrap();
    assert_eq!(scenario.dma_thresholds(), (224 << 20, 256 << 20));
}

#[test]
fn events_weigh_what_the_published_packings_say() {
    // 24 bytes: 3 blocks for 109 chunks.
    let bytes = Scenario::load("gbt").unwrap().event_bytes();
    assert!((bytes - 24.0 * 1024.0 * 3.0 / 109.0).abs() < 0.01);
}

fn refused(text: &str) -> String {
    Scenario::parse(text, "test").unwrap_err().to_string()
}

#[test]
fn mistakes_are_named_by_field_and_what_is_no_scenario_by_line() {
    let many: Vec<u8> = (0..40).collect();
    let many = format!("[card]\nlinks = 24\nelinks = {many:?}\n");
    for (text, wanted) in [
        ("[card]\nlinks = 3\nbananas = 1\n", "test:3: unknown field `bananas`"),
        ("[trigger]\nrate = \"fast\"\n", "test:2: `fast` is not a rate"),
        ("[card]\nring = -1\n", "test:2: `-1` is not a size"),
        ("[card]\nring = true\n", "test:2: expected a text such as"),
        ("[card\n", "test:1: "),
        ("[card]\nblock = \"3000B\"\n", "card.block: 3000 bytes"),
        ("[card]\nlinks = 25\n", "card.links: 25; 1 to 24"),
        ("[card]\nchannels = 8\nlinks = 4\n", "card.links: 4 x 8 channels"),
        ("[card]\nelinks = [1, 1]\n", "card.elinks: indices"),
        ("[card]\npointer_gap = \"32MiB\"\n", "card.pointer_gap"),
        ("[busy]\nassert_below = \"65MiB\"\n", "busy.assert_below"),
        ("[busy]\nassert_below = \"30MiB\"\nrelease_above = \"20MiB\"\n", "busy.assert_below"),
        ("[card]\ndeficits = [0, 0, 0, 0]\n", "card.deficits"),
        ("[card]\ndeficits = [1.0]\n", "card.deficits: [1.0]; a share"),
        ("[card]\ndeficits = [nan]\n", "card.deficits"),
        ("[[fault]]\nkind = \"crc\"\nevery = 0\n", "fault[0].every"),
        ("[[fault]]\nkind = \"crc\"\nevery = 1\nelink = 9\n", "fault[0].elink: 0x009"),
        ("[publish]\ncongestion = \"bbr9\"\n", "publish.congestion: `bbr9` is not available here"),
        ("name = \"a\\u001b[2Jb\"\n", "name: has control characters"),
        (&many, "960 E-links in a channel; at most 768"),
        ("[card]\nring = \"1TiB\"\n", "card.ring: 1 TiB; 64 KiB to 64 GiB"),
        ("[card]\ndma_rate = \"0\"\n", "card.dma_rate: 0 B/s; 64 KiB/s to 1 TiB/s"),
        ("[publish]\ndead_after = \"0s\"\n", "publish.dead_after: 0 ns; 100 ms to 3600 s"),
        ("[card]\nmode = \"full\"\nelinks = [0, 1]\n", "card.elinks: 2 E-links"),
        ("[card]\nfifo = \"1GiB\"\ndma_rate = \"1MiB\"\n", "emptying the FIFO would take 1024 s"),
    ] {
        let found = refused(text);
        assert!(found.contains(wanted) && !found.contains('\n'), "{text}: {found}");
    }
    let unknown = Scenario::load("nothing-like-it").unwrap_err().to_string();
    assert!(unknown.contains("shipped with daqmeter: gbt, full"), "{unknown}");
    let endless = Scenario::load("/dev/zero").unwrap_err().to_string();
    assert!(endless.contains("longer than"), "{endless}");
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
            let is_named = found.contains(&format!("{table}.{field}")) || found.contains("test:2");
            assert!(is_named, "{table}.{field} = {value}: {found}");
        }
    }
}
