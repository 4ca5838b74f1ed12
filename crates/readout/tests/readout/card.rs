//! The emulated card, event by event.

use daqmeter_readout::busy::Cause;
use daqmeter_readout::card::CardState;
use daqmeter_readout::check::{CheckOptions, Checked, ElinkRow, check};
use daqmeter_readout::decode::{blocks_of_card, decode};
use daqmeter_readout::{Card, Scenario};
use daqmeter_record::units::whole;
use daqmeter_sys::ring::Consumer;
use daqmeter_wire::felix::Subchunk;
use daqmeter_wire::felix::decoder::most_subchunks;
use daqmeter_wire::felix::encoder::blocks_of;

const MS: u64 = 1_000_000;

fn scenario(text: &str) -> Scenario {
    Scenario::parse(text, "test").unwrap()
}

fn card(text: &str) -> (Card, Vec<Consumer>) {
    let (mut card, consumers) = Card::new(&scenario(text)).unwrap();
    card.start(0);
    (card, consumers)
}

/// Takes the bytes out of a ring.
fn taken(ring: &mut Consumer) -> Vec<u8> {
    let bytes = ring.spans(0).concat();
    ring.release(bytes.len());
    bytes
}

fn checked(bytes: &[u8]) -> Checked {
    check(bytes, &CheckOptions::default()).unwrap()
}

fn row(checked: &Checked, elink: u16) -> &ElinkRow {
    checked.rows.iter().find(|row| row.elink == elink).unwrap()
}

/// Runs to the end, reads every `step_ns`, and checks what came.
fn run(text: &str, triggers: u64, step_ns: u64) -> (Card, Checked) {
    let (mut card, mut rings) = card(text);
    card.source.max_triggers = triggers;
    let (mut bytes, mut now_ns) = (Vec::new(), 0);
    while card.state() == CardState::Running {
        now_ns += step_ns;
        card.advance(now_ns);
        bytes.append(&mut taken(&mut rings[0]));
    }
    (card, checked(&bytes))
}

#[test]
fn live_and_replayed_blocks_carry_the_same_fragments_of_regular_and_random_triggers() {
    for (source, blocks) in ["fixed", "poisson"].map(|one| [(one, "live"), (one, "auto")]).concat()
    {
        let text = format!(
            "[trigger]\nsource = \"{source}\"\nrate = \"1MHz\"\n[card]\nlinks = 1\nring = \"1MiB\"\nblocks = \"{blocks}\"\n"
        );
        let (_, checked) = run(&text, 20_011, 50_000);
        let chunks = checked.rows.iter().map(|row| row.chunks);
        assert_eq!(chunks.collect::<Vec<_>>(), [20_011; 8], "{source}, {blocks}");
        assert!(checked.is_good(), "{source}, {blocks}: {:?}", checked.faults);
    }
}

#[test]
fn a_live_run_makes_exactly_the_blocks_of_the_arithmetic() {
    let (card, checked) = run("[card]\nttc = true\nring = \"16MiB\"\n", 30_000, MS);
    let format = card.scenario().format().unwrap();
    let blocks = 24 * blocks_of(format, 24, 30_000) + blocks_of(format, 26, 30_000);
    assert_eq!((checked.blocks, row(&checked, 0x600).chunks), (blocks, 30_000));
}

#[test]
fn deficits_are_each_links_own_and_the_same_for_its_e_links() {
    let text = "[card]\nlinks = 2\nring = \"16MiB\"\ndeficits = [0, 0.01]\n";
    let (_, checked) = run(text, 10_000, MS);
    let chunks = [0x008, 0x048, 0x064].map(|elink| row(&checked, elink).chunks);
    assert_eq!(chunks, [10_000, 9900, 9900]);
}

#[test]
fn every_format_and_mode_can_be_read_back() {
    for (text, block) in [
        ("block = \"4KiB\"\n", 4096),
        ("block = \"16KiB\"\n", 16384),
        ("format = \"phase1\"\n", 1024),
        ("format = \"phase1-wide\"\n", 1024),
        ("format = \"phase1-wide\"\nblock = \"2KiB\"\n", 2048),
        ("format = \"phase1-wide\"\nblock = \"3KiB\"\n", 3072),
        ("format = \"phase1-wide\"\nblock = \"4KiB\"\n", 4096),
        ("format = \"phase1-wide\"\nblock = \"8KiB\"\n", 8192),
        ("format = \"phase1-wide\"\nblock = \"16KiB\"\n", 16384),
        ("mode = \"full\"\npayload = \"5000B\"\n", 1024),
    ] {
        let text = format!("[card]\nlinks = 1\nring = \"16MiB\"\n{text}");
        let (_, checked) = run(&text, 2000, MS);
        assert_eq!((checked.block_bytes, checked.rows[0].chunks), (block, 2000), "{text}");
        assert!(checked.is_good(), "{text}: {:?}", checked.faults);
    }
    let wide = scenario("[card]\nformat = \"phase1-wide\"\nblock = \"2KiB\"\n");
    let (format, mut bytes) = (wide.format().unwrap(), vec![0; 1 << 20]);
    blocks_of_card(&wide, &mut bytes).unwrap();
    let mut room = vec![Subchunk::default(); most_subchunks(format)];
    assert!(decode(format, &bytes, &mut room).unwrap() > 30_000);
}

/// Issue 50: of 16 channels, the one whose reader stopped was not named.
#[test]
fn the_channel_that_asserted_busy_is_named_live_and_latched() {
    for blocks in ["live", "auto"] {
        let text =
            format!("[card]\nchannels = 3\nlinks = 1\nring = \"1MiB\"\nblocks = \"{blocks}\"\n");
        let (mut card, mut rings) = card(&text);
        let mut read = |card: &mut Card, until_ms: u64, reads: &[usize]| {
            while card.now_ns() < until_ms * MS {
                card.advance(card.now_ns() + MS / 10);
                reads.iter().for_each(|at| drop(taken(&mut rings[*at])));
            }
            card.view().asserted
        };
        assert_eq!(read(&mut card, 10, &[0, 1, 2]), []);
        let stopped = read(&mut card, 100, &[0, 2]);
        let [busy] = stopped[..] else { panic!("{blocks}: {stopped:?}") };
        assert_eq!((busy.channel, busy.intervals, busy.is_live), (1, 1, true), "{blocks}");
        assert_eq!(busy.ns, card.line.all(card.now_ns()).ns, "{blocks}");
        let [latched] = read(&mut card, 110, &[0, 1, 2])[..] else { panic!("{blocks}") };
        assert_eq!((latched.intervals, latched.is_live), (1, false), "{blocks}");
        assert!(latched.ns >= busy.ns && latched.ns < busy.ns + 2 * MS, "{blocks}: {latched:?}");
    }
    let unused = "[card]\nring = \"1MiB\"\n[busy]\ndma = false\nfifo = false\n";
    let (mut card, _rings) = card(unused);
    card.advance(100 * MS);
    assert!(card.line.is_live(Cause::Dma) && card.view().asserted.is_empty());
}

/// A host that reads nothing: the ring fills to its mark, BUSY stops the trigger, and goes when
/// enough is free again.
#[test]
fn busy_by_dma_is_asserted_at_the_mark_and_released_above_the_other() {
    let base =
        "[trigger]\nrate = \"1MHz\"\n[card]\nlinks = 1\nring = \"4MiB\"\npointer_gap = \"4KiB\"\n";
    for blocks in ["live", "auto"] {
        let marks = "[busy]\nassert_below = \"1MiB\"\nrelease_above = \"2MiB\"\n";
        let (mut card, mut rings) = card(&format!("{base}blocks = \"{blocks}\"\n{marks}"));
        let ring_bytes = card.scenario().card.ring.0;
        let mut now_ns = 0;
        while card.line.asserted().is_none() {
            now_ns += 10_000;
            card.advance(now_ns);
        }
        let filled = rings[0].filled();
        // The eight E-links fill their blocks at the same trigger.
        assert!(
            (ring_bytes - (1 << 20)..ring_bytes - (1 << 20) + 9 * 1024).contains(&filled),
            "{blocks}: {filled}"
        );
        card.advance(now_ns + MS);
        assert_eq!(rings[0].filled(), filled, "{blocks}: nothing came while BUSY");
        // Half a MiB more free is between the marks; another half is above.
        rings[0].release(512 << 10);
        card.advance(now_ns + 2 * MS);
        assert_eq!(card.line.asserted(), Some(Cause::Dma), "{blocks}");
        rings[0].release(540 << 10);
        card.advance(now_ns + 3 * MS);
        let line = card.line;
        assert_eq!(line.asserted(), None, "{blocks}");
        let dead = line.all(now_ns + 3 * MS);
        assert_eq!(dead.count, 1);
        // From the assertion to the call before the one that saw the release.
        assert!((2 * MS..2 * MS + 20_000).contains(&dead.ns), "{blocks}: {}", dead.ns);
        assert!(dead.vetoed.abs_diff(dead.ns / 1000) <= 1, "{blocks}: {dead:?}");
    }
}

#[test]
fn a_busy_that_is_off_lets_the_ring_fill_and_the_fifo_cut_off() {
    let text = "[trigger]\nrate = \"1MHz\"\n[card]\nlinks = 1\nring = \"1MiB\"\npointer_gap = \"4KiB\"\nfifo = \"16KiB\"\nblocks = \"live\"\n\
                [busy]\ndma = false\n";
    let (mut card, mut rings) = card(text);
    card.source.max_triggers = 20_000;
    card.advance(20 * MS);
    assert!(card.line.is_live(Cause::Dma) && card.line.asserted().is_none());
    assert_eq!(rings[0].filled(), 1 << 20, "the card never writes over the host's pointer");
    let mut bytes = Vec::new();
    for step in 1..100 {
        bytes.append(&mut taken(&mut rings[0]));
        card.advance(20 * MS + step * 1000);
    }
    assert_eq!(card.state(), CardState::Finished);
    let checked = checked(&bytes);
    assert!(checked.rows.iter().all(|row| row.chunks < 20_000), "{:?}", checked.rows);
    assert_eq!(checked.damages().next(), None, "{:?}", checked.messages);
}

#[test]
fn a_slow_bus_backs_up_into_the_fifo_and_busy_by_fifo_holds_it() {
    let text = "[trigger]\nrate = \"1MHz\"\n[card]\nlinks = 1\nring = \"16MiB\"\nfifo = \"64KiB\"\ndma_rate = \"100MB\"\n\
                [busy]\nfifo = true\n";
    let (mut card, mut rings) = card(text);
    let mut bytes = Vec::new();
    for step in 1..=1000_u64 {
        card.advance(step * 100_000);
        bytes.append(&mut taken(&mut rings[0]));
    }
    let line = card.line;
    let (dma, fifo) = (line.dead(Cause::Dma, 100 * MS), line.dead(Cause::Fifo, 100 * MS));
    // 8 E-links of 28.2 bytes at 1 MHz are 225 MB/s in blocks; the bus takes 100.
    assert_eq!((dma.ns, dma.vetoed), (0, 0));
    let share = fifo.ns as f64 / 100e6;
    assert!((0.53..0.58).contains(&share), "{share}");
    let events = checked(&bytes).rows[0].chunks as f64;
    assert!((events / 0.1 / 1e6 - (1.0 - share)).abs() < 0.02, "{events}");
}

/// A file in a folder that lives as long as the test.
fn file(folder: &tempfile::TempDir, name: &str, text: &str) -> String {
    let path = folder.path().join(name);
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

/// The pattern is not of the card: dead time and stopped triggers are computed from the files only.
#[test]
fn triggers_of_a_file_and_busy_from_outside_give_exactly_the_dead_time_of_their_files() {
    let mut random = daqmeter_stats::Random::new(50);
    let mut ascending = |count: usize, step_ns: f64| {
        let mut now_ns = 0;
        let mut next = || {
            now_ns += 1 + whole(random.uniform() * step_ns);
            now_ns
        };
        (0..count).map(|_| next()).collect::<Vec<u64>>()
    };
    let (triggers, busy) = (ascending(5000, 2000.0), ascending(600, 12_000.0));
    let lines = |times: &[u64]| times.iter().map(|ns| format!("{ns}ns\n")).collect::<String>();
    let folder = tempfile::tempdir().unwrap();
    let [times, outside] =
        [("t", &triggers), ("b", &busy)].map(|(name, list)| file(&folder, name, &lines(list)));
    let text = format!(
        "[trigger]\ntimes = \"{times}\"\n[busy]\noutside = \"{outside}\"\n[card]\nlinks = 1\nring = \"4MiB\"\n"
    );
    let (card, checked) = run(&text, 5000, 12_345);
    let end_ns = card.now_ns();
    let intervals: Vec<(u64, u64)> = busy.chunks(2).map(|pair| (pair[0], pair[1])).collect();
    let is_dead = |at_ns: &&u64| intervals.iter().any(|(on, off)| (*on..*off).contains(*at_ns));
    let vetoed = triggers.iter().filter(is_dead).count() as u64;
    let begun = intervals.iter().filter(|(on, _)| *on <= end_ns);
    let lengths: Vec<u64> = begun.map(|(on, off)| (*off).min(end_ns) - on).collect();
    assert!(vetoed > 1000 && lengths.len() > 100, "{vetoed} {}", lengths.len());
    let dead = card.line.dead(Cause::Outside, end_ns);
    assert_eq!((dead.vetoed, dead.count), (vetoed, lengths.len() as u64));
    assert_eq!((dead.ns, Some(&dead.longest_ns)), (lengths.iter().sum(), lengths.iter().max()));
    assert_eq!((card.line.all(end_ns), card.line.dead(Cause::Dma, end_ns).ns), (dead, 0));
    assert_eq!(card.source.issued, 5000);
    assert!(checked.rows.iter().all(|row| row.chunks == 5000 - vetoed), "{:?}", checked.rows);
}

#[test]
fn a_scenario_has_the_rate_and_the_digests_of_its_files() {
    let folder = tempfile::tempdir().unwrap();
    let times = file(&folder, "t", "1us\nevery 4us\n");
    let path = file(&folder, "s.toml", &format!("[trigger]\ntimes = \"{times}\"\n"));
    let chosen = |text: &str| {
        text.parse().map(|scenario| daqmeter_readout::Chosen { scenario, ..Default::default() })
    };
    let first = chosen(&path).unwrap();
    assert_eq!(first.completed().unwrap().trigger.rate.0, 250e3);
    let other = daqmeter_readout::Chosen { rate_hz: Some(1e3), ..first.clone() };
    let refused = other.completed().unwrap_err();
    assert!(
        refused.starts_with("trigger.rate: 1000.0 Hz; the times in the file have"),
        "{refused}"
    );
    std::fs::write(&times, "2us\nevery 4us\n").unwrap();
    let changed = chosen(&first.scenario.to_string()).unwrap_err();
    assert!(changed.contains("was changed: its digest is"), "{changed}");
    let odd = Scenario::parse(&format!("[busy]\noutside = \"{times}\"\n"), "s").unwrap_err();
    assert!(odd.contains("busy.outside: an interval has a begin and an end"), "{odd}");
}

#[test]
fn the_pointer_may_be_inside_a_block_in_units_of_tlps() {
    let text =
        "[trigger]\nrate = \"100kHz\"\n[card]\nlinks = 1\nring = \"1MiB\"\ndma_rate = \"1MB\"\n";
    let (mut card, rings) = card(text);
    let mut inside = 0;
    for step in 1..2000_u64 {
        card.advance(step * 100_000);
        let filled = rings[0].filled();
        assert_eq!(filled % 512, 0);
        inside += u64::from(filled % 1024 != 0);
    }
    assert!(inside > 100, "{inside}");
}

#[test]
fn blocks_are_closed_by_a_timeout_when_triggers_are_rare() {
    let text =
        "[trigger]\nrate = \"100Hz\"\n[card]\nlinks = 1\nring = \"1MiB\"\ntimeout = \"1ms\"\n";
    let (mut card, mut rings) = card(text);
    card.advance(10 * MS);
    assert_eq!(rings[0].filled(), 0, "the block is open");
    card.advance(11 * MS + 1);
    let checked = checked(&taken(&mut rings[0]));
    let first = row(&checked, 0x008);
    assert_eq!((checked.blocks, first.subchunks[5], first.chunks), (8, 1, 1));
}

#[test]
fn the_times_of_blocks_are_those_of_their_first_triggers() {
    for blocks in ["live", "auto"] {
        let text = format!(
            "[trigger]\nrate = \"1MHz\"\n[card]\nlinks = 1\nring = \"1MiB\"\nblocks = \"{blocks}\"\n"
        );
        let (mut card, rings) = card(&text);
        card.advance(MS);
        let (first, ninth) = (rings[0].timestamp(0), rings[0].timestamp(8 * 1024));
        assert!(
            first.abs_diff(1000) < 20 && ninth.abs_diff(37_000) < 1100,
            "{blocks}: {first} {ninth}"
        );
    }
}

/// Blocks that the end of a run closed had the time of that end.
#[test]
fn a_block_that_the_end_closes_is_as_old_as_its_first_trigger() {
    for blocks in ["live", "auto"] {
        let text = format!(
            "[trigger]\nrate = \"1Hz\"\n[card]\nlinks = 1\nring = \"1MiB\"\nblocks = \"{blocks}\"\n"
        );
        let (mut card, rings) = card(&text);
        card.source.end_ns = 4900 * MS;
        card.advance(5000 * MS);
        assert_eq!(card.state(), CardState::Finished, "{blocks}");
        assert_eq!(rings[0].timestamp(0), 1000 * MS, "{blocks}");
    }
}

/// Blocks of 0xABCE above 1 KiB were "bad block starts": the size is the distance of the starts.
#[test]
fn the_size_of_blocks_that_do_not_state_it_is_found_from_few_blocks_and_spoilt_ones() {
    for kib in [1, 2, 3, 4, 8, 16] {
        let text = format!("[card]\nlinks = 1\nformat = \"phase1-wide\"\nblock = \"{kib}KiB\"\n");
        let size = kib << 10;
        let mut bytes = vec![0; 5 * size];
        blocks_of_card(&scenario(&text), &mut bytes).unwrap();
        for blocks in 1..=5 {
            let checked = checked(&bytes[..blocks * size]);
            let found = (checked.block_bytes, checked.blocks);
            assert_eq!(found, (size, blocks as u64), "{blocks} blocks of {kib} KiB");
        }
        bytes[size + 2] ^= 0xFF;
        assert_eq!(checked(&bytes).block_bytes, size, "the second of {kib} KiB is spoilt");
    }
}

/// A block that was to change places with the next stayed behind if no block was open at the end.
#[test]
fn a_block_that_waits_for_another_is_given_at_the_end() {
    // Each chunk fills a block.
    let text = "[card]\nmode = \"full\"\nlinks = 1\nring = \"1MiB\"\npayload = \"1016B\"\n\
                [[fault]]\nkind = \"swapped-blocks\"\nevery = 3\n";
    for triggers in 1..=7 {
        let (_, checked) = run(text, triggers, MS);
        assert_eq!((checked.rows[0].blocks, checked.rows[0].chunks), (triggers, triggers));
    }
}
