//! The checker on good and on damaged files.

use std::sync::atomic::AtomicBool;

use daqmeter_wire::felix::payload::{EmulatorHeader, Ttc};
use daqmeter_wire::felix::{ChunkFlags, Elink, Encoder};

use super::*;
use crate::card::ChannelId;
use crate::scenario::Scenario;

fn file(triggers: u64, faults: &str) -> Vec<u8> {
    let scenario =
        Scenario::parse(&format!("[card]\nlinks = 1\nring = \"1MiB\"\n{faults}"), "").unwrap();
    let mut bytes = Vec::new();
    let (first, never) = (ChannelId { device: 0, channel: 0 }, AtomicBool::new(false));
    crate::recording::record(&scenario, first, triggers, &never, |part| {
        bytes.extend_from_slice(part);
        Ok(())
    })
    .unwrap();
    bytes
}

fn of(bytes: &[u8]) -> Checked {
    check(bytes, &CheckOptions::default()).unwrap()
}

#[test]
fn a_good_file_gives_the_tables_of_the_tools() {
    let checked = of(&file(1000, ""));
    assert!(checked.is_good(), "{:?}", checked.faults);
    assert_eq!((checked.rows.len(), checked.rows[0].chunks, checked.rows[0].width), (8, 1000, 8));
    let table = checked.fdaqm_table("0-0");
    assert!(table.starts_with("-> Data checked @Dev-DMA=0-0: Blocks 224\n"), "{table}");
    assert!(table.contains("\n 0x008  00-08        1000\n"), "{table}");
    assert!(checked.fcheck_table().contains("224 blocks of 1024 bytes, 0 undefined types"));
}

#[test]
fn however_the_bytes_are_cut_the_result_is_the_same() {
    let bytes = file(500, "[[fault]]\nkind = \"corrupted-magic\"\nevery = 5\n");
    let whole = of(&bytes);
    for cut in [1, 7, 1000, 1024, 1025, 5000] {
        let mut checker = Checker::new(CheckOptions::default());
        bytes.chunks(cut).for_each(|part| checker.take(part).unwrap());
        assert_eq!(checker.finish().unwrap(), whole, "{cut}");
    }
}

#[test]
fn each_fault_has_its_message_with_block_and_place() {
    let good = file(500, "");
    type Edit = fn(&mut Vec<u8>);
    let cases: [(Edit, &str, &str); 7] = [
        (|bytes| bytes[20 * 1024 + 2] ^= 0xFF, "bad block start", "block 20 @ 0x5000: "),
        (|bytes| bytes[21 * 1024 - 1] = 0xC0, "undefined type", "block 20 @ 0x5000: "),
        (|bytes| bytes[21 * 1024 - 3] = 0xFF, "length mismatch", "block 20 @ 0x5000: "),
        (
            |bytes| drop(bytes.drain(20 * 1024..21 * 1024)),
            "sequence mismatch",
            "block 27 @ 0x6c00: sequence mismatch: E-link 0x018: expected 2, seen 3",
        ),
        (|bytes| drop(bytes.drain(20_000..20_100)), "bytes of no block", "block 20 @ 0x5000: "),
        (
            |bytes| bytes[20] ^= 1,
            "wrong payload",
            "block 0 @ 0x0: wrong payload: E-link 0x008 at 0x4",
        ),
        (|bytes| bytes.truncate(20 * 1024 + 5), "cut off", "block 20 @ 0x5000: "),
    ];
    for (edit, fault, message) in cases {
        let mut bytes = good.clone();
        edit(&mut bytes);
        let checked = of(&bytes);
        assert_eq!(checked.faults[fault], 1, "{fault}: {:?}", checked.faults);
        let own = checked.messages.iter().find(|line| line.contains(fault)).unwrap();
        assert!(own.starts_with(message), "{own}");
        if fault == "bad block start" {
            assert_eq!(checked.blocks, of(&good).blocks, "the next block is where it was");
        }
        assert!(fault != "bytes of no block" || checked.faults["sequence mismatch"] == 1);
        assert!(fault != "cut off" || checked.skipped_bytes == 5);
    }
}

#[test]
fn levels_leave_out_what_is_above_them() {
    let mut bytes = file(500, "");
    bytes[20] ^= 1;
    bytes.drain(21 * 1024..22 * 1024);
    let at = |level| {
        check(&bytes[..], &CheckOptions { level, ..CheckOptions::default() }).unwrap().faults
    };
    assert!(at(0).is_empty());
    assert_eq!(at(1).keys().collect::<Vec<_>>(), [&"sequence mismatch"]);
    assert!(at(2).contains_key("sequence mismatch") && !at(2).contains_key("wrong payload"));
    assert!(at(3).contains_key("wrong payload"));
}

/// Missing, twice, late: blocks, and events.
fn sums(checked: &Checked) -> [[u64; 3]; 2] {
    let blocks = |row: &ElinkRow| [row.missing_blocks, row.duplicate_blocks, row.late_blocks];
    let events =
        |row: &ElinkRow| [row.events.missing, row.events.duplicates, row.events.out_of_order];
    let sum =
        |of: &dyn Fn(&ElinkRow) -> [u64; 3]| [0, 1, 2].map(|at| checked.sum(|row| of(row)[at]));
    [sum(&blocks), sum(&events)]
}

fn swapped(bytes: &mut [u8], one: usize, other: usize) {
    let (head, tail) = bytes.split_at_mut(other * 1024);
    head[one * 1024..(one + 1) * 1024].swap_with_slice(&mut tail[..1024]);
}

#[test]
fn what_is_missing_what_comes_twice_and_what_comes_late_are_counted_apart() {
    let good = file(1000, "");
    // Eight E-links in turn: blocks 80, 88, 96 are of one.
    let lost = [&good[..80 * 1024], &good[81 * 1024..]].concat();
    let lost = of(&lost);
    let [[blocks, 0, 0], [events, 0, 0]] = sums(&lost) else { panic!("{lost:?}") };
    assert!(blocks == 1 && (36..=38).contains(&events), "{lost:?}");
    let place = lost.messages.iter().find(|line| line.contains("missing events")).unwrap();
    assert!(
        place.starts_with("block 87 @ 0x15c00: missing events: E-link 0x008: 37 before it"),
        "{place}"
    );
    let twice = [&good[..96 * 1024], &good[80 * 1024..81 * 1024], &good[88 * 1024..]].concat();
    let twice = of(&[&twice[..97 * 1024], &good[96 * 1024..]].concat());
    assert_eq!(sums(&twice), [[0, 1, 0], [0, 0, 0]], "{:?}", twice.messages);
    let repeated = of(&[&good[..104 * 1024], &good[80 * 1024..]].concat());
    assert_eq!(sums(&repeated), [[0, 24, 0], [0, 0, 0]], "{:?}", repeated.messages);
    assert_eq!(repeated.faults.keys().collect::<Vec<_>>(), [&"duplicate block"]);
    // At any position. The chunks that go over the edges of blocks cannot be put together.
    for first in (8..190).step_by(8) {
        let mut late = good.clone();
        swapped(&mut late, first, first + 8);
        let late = of(&late);
        let [[0, 0, 1], [broken, 0, came_late]] = sums(&late) else { panic!("{first}: {late:?}") };
        assert!(broken <= 3 && (33..=37).contains(&came_late), "{first}: {late:?}");
    }
}

#[test]
fn a_block_that_is_missing_among_blocks_that_are_all_alike_is_missing() {
    let bytes = one_elink(Elink::new(8), std::iter::repeat_n(vec![0x55; 1016], 100));
    let lost = [&bytes[..50 * 1024], &bytes[51 * 1024..]].concat();
    let checked = check(&lost[..], &CheckOptions { level: 2, ..CheckOptions::default() }).unwrap();
    assert_eq!(sums(&checked)[0], [1, 0, 0], "{:?}", checked.messages);
}

#[test]
fn blocks_whose_e_links_are_exchanged_are_found() {
    let mut bytes = file(1000, "");
    for at in 0..2 {
        bytes.swap(80 * 1024 + at, 81 * 1024 + at);
    }
    let checked = of(&bytes);
    assert!((70..=76).contains(&checked.faults["wrong E-link"]), "{:?}", checked.faults);
    let line = checked.messages.iter().find(|line| line.contains("wrong E-link")).unwrap();
    assert!(line.starts_with("block 80 @ 0x14000: wrong E-link: E-link 0x00c at 0x14"), "{line}");
    assert!(line.contains("names index 0x08"), "{line}");
}

/// A file of one E-link with the trigger system's messages, or events of the emulator.
fn one_elink(elink: Elink, chunks: impl Iterator<Item = Vec<u8>>) -> Vec<u8> {
    let (mut memory, mut bytes) = (vec![0; 1024], Vec::new());
    let mut out = |block: &[u8]| bytes.extend_from_slice(block);
    let mut encoder =
        Encoder::new(BlockFormat::phase2(1).unwrap(), elink, &mut memory[..]).unwrap();
    chunks.for_each(|chunk| encoder.chunk(&chunk, ChunkFlags::default(), &mut out));
    encoder.timeout(&mut out);
    bytes
}

fn ttc((ecr, number): (u8, u32)) -> Vec<u8> {
    let (l1id, l0id) = (number, number);
    let accepts = 1 + u64::from(number) + 50 * u64::from(ecr);
    Ttc { format: 2, bcid: 0, l1id, ecr, orbit: 0, trigger_type: 0, l0id, accepts }.emit().to_vec()
}

fn emulated(elink: u16, event: u8) -> Vec<u8> {
    let mut chunk = vec![0; 24];
    EmulatorHeader { length: 24, event, elink_index: Elink::new(elink).index(), width: 8 }
        .fill(&mut chunk);
    chunk
}

#[test]
fn a_counter_that_falls_to_0_may_be_a_reset_or_a_loss() {
    let alone = one_elink(Elink::new(8), (0..200).chain(0..100).map(|event| emulated(8, event)));
    let checked = of(&alone);
    let events = checked.rows[0].events;
    assert_eq!((events.missing, events.resets), (0, 0));
    assert_eq!((events.unclear, events.unclear_missing), (1, 56));
    assert!(!checked.is_good());
    let said = "events 200 to 255 may be missing on E-link 0x008 only: 56 in all; or the counter was reset";
    assert_eq!(checked.lost, [said]);
    let line = &checked.messages[0];
    assert!(line.ends_with("E-link 0x008: a reset, or 56 events are missing"), "{line}");
}

#[test]
fn a_reset_that_the_trigger_system_announces_is_counted_and_is_no_fault() {
    let counts = (0..50).map(|number| (0, number)).chain((0..60).map(|number| (1, number)));
    let checked = of(&one_elink(Elink::TTC, counts.map(ttc)));
    assert!(checked.is_good(), "{:?}", checked.messages);
    assert_eq!((checked.rows[0].events.resets, checked.rows[0].chunks), (1, 110));
    assert!(checked.fcheck_table().contains("event counters were reset 1 times"));
    let line = &checked.messages[0];
    assert!(line.contains("counter reset: E-link 0x600 at 0x"), "{line}");
    // One event twice, and one that came too late.
    let checked = of(&one_elink(
        Elink::new(8),
        [0, 1, 1, 2, 5, 6, 3, 7].into_iter().map(|event| emulated(8, event)),
    ));
    assert_eq!(sums(&checked), [[0; 3], [1, 1, 1]], "{:?}", checked.messages);
}

#[test]
fn a_bad_beginning_costs_what_is_bad_and_no_more() {
    let good = file(500, "");
    let whole = of(&good);
    let edited = |edit: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = good.clone();
        edit(&mut bytes);
        let mut parts = Checker::new(CheckOptions::default());
        bytes.chunks(777).for_each(|part| parts.take(part).unwrap());
        let checked = of(&bytes);
        assert_eq!(parts.finish().unwrap(), checked);
        checked
    };
    for id in [[0, 0], [0xCE, 0xC1]] {
        let spoilt = edited(&|bytes| bytes[2..4].copy_from_slice(&id));
        assert_eq!(
            (spoilt.blocks, spoilt.faults["bad block start"], spoilt.faults.len()),
            (whole.blocks, 1, 2)
        );
        // The others began with event 0.
        assert_eq!(spoilt.faults["events that may be missing"], 1);
    }
    let cut = edited(&|bytes| drop(bytes.drain(..300)));
    assert_eq!((cut.blocks, cut.skipped_bytes), (whole.blocks - 1, 724));
    let added = edited(&|bytes| drop(bytes.splice(..0, [0xAB; 5000])));
    assert_eq!((added.blocks, added.skipped_bytes), (whole.blocks, 5000));
}

#[test]
fn a_selection_of_nothing_is_not_good() {
    let bytes = file(100, "");
    let with = |options: CheckOptions| check(&bytes[..], &options).unwrap();
    let blocks = of(&bytes).checked_blocks;
    assert_eq!(blocks, bytes.len() as u64 / 1024);
    for options in [
        CheckOptions { elinks: vec![0x7FF], ..CheckOptions::default() },
        CheckOptions { elinks: vec![0x7FF], level: 0, ..CheckOptions::default() },
    ] {
        let checked = with(options);
        assert!(checked.checked_blocks == 0 && !checked.is_good() && checked.faults.is_empty());
    }
    assert!(with(CheckOptions { elinks: vec![8], ..CheckOptions::default() }).is_good());
}

#[test]
fn messages_that_are_left_out_are_counted() {
    let mut bytes = file(1000, "");
    bytes.chunks_exact_mut(1024).for_each(|block| block[2] = 0);
    bytes[2] = 0xCE;
    let last = bytes.len() - 1022;
    bytes[last] = 0xCE;
    let checked =
        check(&bytes[..], &CheckOptions { max_messages: 7, ..CheckOptions::default() }).unwrap();
    let faults = checked.faults.values().sum::<u64>();
    assert_eq!((checked.messages.len(), checked.messages_left_out + 7), (7, faults));
}

#[test]
fn both_ways_of_counting_differ_by_what_a_timeout_cut_off() {
    let mut bytes = one_elink(Elink::new(8), [vec![0xAA; 900]].into_iter());
    // The flag of the timeout's trailer.
    *bytes.last_mut().unwrap() |= 1 << 4;
    let checked = check(&bytes[..], &CheckOptions { level: 2, ..CheckOptions::default() }).unwrap();
    assert_eq!((checked.rows[0].chunks, checked.rows[0].chunks_with_timeouts), (1, 2));
}

#[test]
fn what_cannot_be_read_ends_the_check() {
    struct Failing(Vec<u8>);
    impl std::io::Read for Failing {
        fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
            match self.0.is_empty() {
                true => Err(io::Error::other("no more")),
                false => {
                    room[..self.0.len()].copy_from_slice(&self.0);
                    Ok(std::mem::take(&mut self.0).len())
                }
            }
        }
    }
    let failed = check(Failing(file(10, "")), &CheckOptions::default());
    assert_eq!(failed.unwrap_err().to_string(), "cannot read: no more");
    for (bytes, why) in [
        (&b"#!/bin/sh\necho not a block\n"[..], "not a file of FELIX blocks"),
        (&[], "0 bytes"),
        (&[7; 2 << 20], "begins with 0x07070707,"),
    ] {
        let foreign = check(bytes, &CheckOptions::default());
        assert!(foreign.is_err_and(|found| found.contains(why)), "{why}");
    }
}
