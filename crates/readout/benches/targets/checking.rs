//! The checker against decoding the same blocks, by level, and its threads.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};

use daqmeter_readout::Scenario;
use daqmeter_readout::check::{Checker, Options, check_watched};
use daqmeter_readout::decode::{blocks_of_card, decode};
use daqmeter_sys::affinity;
use daqmeter_wire::felix::decoder::most_subchunks;
use daqmeter_wire::felix::{BlockFormat, Subchunk};

use crate::interleaved::{Row, Side, in_turn, over};

const PART: usize = 512 << 10;
const TURNS: usize = 51;

struct BlockSource {
    format: BlockFormat,
    bytes: Vec<u8>,
    file: File,
    chunks: f64,
}

impl BlockSource {
    fn of(scenario: &str, bytes: usize) -> BlockSource {
        let scenario = Scenario::load(scenario).unwrap();
        let bytes = blocks_of_card(&scenario, bytes).unwrap();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&bytes).unwrap();
        let mut checker = Checker::new(Options::default());
        checker.take(&bytes).unwrap();
        let checked = checker.finish().unwrap();
        assert!(checked.is_good());
        BlockSource {
            format: scenario.format().unwrap(),
            chunks: checked.sum(|row| row.subchunks.iter().sum()) as f64,
            bytes,
            file,
        }
    }

    fn rewound(&self) -> File {
        let mut file = self.file.try_clone().unwrap();
        file.seek(SeekFrom::Start(0)).unwrap();
        file
    }

    fn each_part(&self, mut take: impl FnMut(&[u8])) {
        let (mut file, mut part) = (self.rewound(), vec![0; PART]);
        loop {
            match file.read(&mut part).unwrap() {
                0 => break,
                got => take(&part[..got]),
            }
        }
    }
}

fn options(level: u8) -> Options {
    Options { level, ..Options::default() }
}

fn finish(checker: Checker) {
    assert!(checker.finish().unwrap().is_good());
}

fn whole(blocks: &BlockSource, level: u8, threads: usize) {
    let checked = check_watched(blocks.rewound(), &options(level), threads, |_| {});
    assert!(checked.unwrap().is_good());
}

fn print(row: &Row, against: &Row) {
    println!(
        "    {:<34} {:>6.2} ns a chunk; rate over {} {}",
        row.name,
        row.median(),
        against.name,
        over(against, row)
    );
}

/// Measures one thread on this CPU: from memory, from the page cache, and as `readout check` on all
/// CPUs.
pub(crate) fn levels(scenario: &str, bytes: usize, cpu: u32) {
    let blocks = BlockSource::of(scenario, bytes);
    println!("  {scenario}, {} MiB, {:.0} chunks, {TURNS} turns", bytes >> 20, blocks.chunks);
    let mut room = vec![Subchunk::default(); most_subchunks(blocks.format)];
    let mut room_of_parts = room.clone();
    let (all, chunks) = (&blocks, blocks.chunks);
    // The choice of the reading thread takes 56 MiB of trials.
    let long = BlockSource::of(scenario, 8 * bytes);
    let long = &long;
    let mut sides = vec![Side::timed("decoding", chunks, || {
        decode(all.format, &all.bytes, &mut room).unwrap();
    })];
    for level in 1..=3 {
        sides.push(Side::timed(format!("level {level}"), chunks, move || {
            let mut checker = Checker::new(options(level));
            all.bytes.chunks(PART).for_each(|part| checker.take(part).unwrap());
            finish(checker);
        }));
    }
    sides.push(Side::timed("reading and decoding", chunks, || {
        all.each_part(|part| {
            decode(all.format, part, &mut room_of_parts).unwrap();
        });
    }));
    for level in 1..=3 {
        let name = format!("reading, level {level}");
        sides.push(Side::timed(name, chunks, move || {
            let mut checker = Checker::new(options(level));
            all.each_part(|part| checker.take(part).unwrap());
            finish(checker);
        }));
    }
    for level in 1..=3 {
        let name = format!("level {level}, as readout check, any CPU");
        sides.push(Side::timed(name, long.chunks, move || {
            affinity::unpin();
            whole(long, level, 1);
            affinity::pin_to(cpu).unwrap();
        }));
    }
    let rows = in_turn(TURNS, sides);
    rows[..4].iter().for_each(|row| print(row, &rows[0]));
    rows[4..].iter().for_each(|row| print(row, &rows[4]));
}

/// `readout check` on one CPU against all of them, with one thread and with two.
pub(crate) fn threads(scenario: &str, bytes: usize, cpu: u32) {
    let blocks = BlockSource::of(scenario, bytes);
    let (all, chunks) = (&blocks, blocks.chunks);
    for level in 1..=3 {
        let one_cpu = Side::timed("one CPU, one thread", chunks, move || whole(all, level, 1));
        let on_all = |threads: usize| {
            let name = format!("all CPUs, --threads {threads}");
            Side::timed(name, chunks, move || {
                affinity::unpin();
                whole(all, level, threads);
                affinity::pin_to(cpu).unwrap();
            })
        };
        println!("  {scenario}, {} MiB, level {level}", bytes >> 20);
        let rows = in_turn(TURNS, vec![one_cpu, on_all(1), on_all(2)]);
        rows.iter().for_each(|row| print(row, &rows[0]));
    }
}
