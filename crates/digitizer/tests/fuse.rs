//! The real-device code against an emulated board behind a FUSE file.

#![allow(clippy::unwrap_used, reason = "a test stops where it fails")]

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;
use std::time::Duration;

use daqmeter_digitizer::DigitizerRequest;
use daqmeter_digitizer::daq::Daq;
use daqmeter_digitizer::devices::board::{Board, BoardCommands, pattern_sample};
use daqmeter_digitizer::devices::sis8300::emulated::{EmulatedCrate, Profile};
use daqmeter_digitizer::devices::sis8300::{
    BoardRegisters, Dialect, EssBoard, ProbedDriver, ServedBoard, open_ess, probe, regs, serve,
};
use daqmeter_harness::{Context, Request, Settings, StepPlan, measure};
use daqmeter_record::{Outcome, RunRecord, Workload};

struct Bench {
    served: ServedBoard,
    _dir: tempfile::TempDir,
}

impl Bench {
    fn path(&self) -> &str {
        self.served.path.to_str().expect("a temporary path is text")
    }
}

fn bench(name: &str, dialect: Dialect, rate_hz: f64) -> Bench {
    let dir = tempfile::tempdir().unwrap();
    let crate_ = EmulatedCrate::new(Profile::default(), false);
    let mut board = crate_.board(name, name).unwrap();
    board.set_trigger_rate(rate_hz);
    let served = serve(board, &dir.path().join("sis8300-6"), dialect).unwrap();
    Bench { served, _dir: dir }
}

fn open(bench: &Bench) -> EssBoard {
    open_ess(bench.path()).unwrap()
}

#[test]
#[ignore = "needs /dev/fuse, and root or fusermount3: cargo xtask ci"]
fn drivers_are_told_apart_by_their_ioctls_and_a_board_has_one_user() {
    let ess = bench("ku0", Dialect::Ess, 14.0);
    let found = probe(ess.path()).unwrap();
    assert!(matches!(found, ProbedDriver::Ess { id, .. } if id >> 16 == 0x8303));
    let first = open(&ess);
    assert_eq!(first.identity().model, "SIS8300-KU");
    let struck = bench("l0", Dialect::Struck, 14.0);
    for (bench, why) in [(&ess, "another program has this board"), (&struck, "Struck")] {
        let refused = open_ess(bench.path()).err().unwrap().0;
        assert!(refused.contains(why), "{refused}");
    }
    drop(first);
    open(&ess);
}

#[test]
#[ignore = "needs /dev/fuse, and root or fusermount3: cargo xtask ci"]
fn lseek_and_read_deliver_what_lies_at_the_offset_and_so_does_a_mapped_buffer() {
    let bench = bench("l0", Dialect::Ess, 14.0);
    let mut board = open(&bench);
    board.map(65_536).unwrap();
    assert_eq!(board.read_mapped(128, 65_536).unwrap(), 65_536);
    let mut samples = (64..).zip(board.mapped(32_768));
    assert!(samples.all(|(at, &sample)| sample == pattern_sample(at)));
    for offset in [0_u64, 32, 6_000_000, 2_000_000_000] {
        let mut bytes = vec![0; 3 << 20];
        assert_eq!(board.read(offset, &mut bytes).unwrap(), bytes.len());
        for (at, pair) in bytes.as_chunks::<2>().0.iter().enumerate() {
            assert_eq!(
                u16::from_le_bytes(*pair),
                pattern_sample(offset / 2 + at as u64),
                "offset {offset} sample {at}"
            );
        }
    }
}

fn measured(devices: &str, operations: u64, options: &[(&str, u64)]) -> RunRecord {
    let mut workload = Workload::new("digitizer").with("devices", devices);
    for (name, value) in options {
        workload = workload.with(name, *value);
    }
    let job = DigitizerRequest::of(&workload).unwrap().job().unwrap();
    let settings = Settings::new(StepPlan::ByStage(operations), "test");
    measure(&job, &settings, &Context::default(), &[], &mut []).unwrap()
}

/// The board takes DMA writes of 64 bytes; 6 MB went out as one `write()` (issue 14, A12).
#[test]
#[ignore = "needs /dev/fuse, and root or fusermount3: cargo xtask ci"]
fn a_pattern_goes_out_as_dma_writes_of_64_bytes_and_the_memory_is_protected_again() {
    let bench = bench("l0", Dialect::Ess, 14.0);
    let record = measured(bench.path(), 1, &[("samples", 3_200), ("function", 100)]);
    assert_eq!(record.outcome, Outcome::Ok);
    let writes = bench.served.traffic.counts[1].load(Ordering::Relaxed);
    // 6,400 bytes each time: once to verify, and at least once within the run.
    assert!(writes >= 200 && writes.is_multiple_of(100), "{writes}");
    assert_eq!(bench.served.traffic.counts[2].load(Ordering::Relaxed), 0);
    assert_eq!(open(&bench).read_register(regs::MEMORY_WRITE_ENABLE).unwrap(), 0);
}

#[test]
#[ignore = "needs /dev/fuse, and root or fusermount3: cargo xtask ci"]
fn transfers_that_a_board_or_its_driver_cannot_do_are_refused_and_counted() {
    let bench = bench("l0", Dialect::Ess, 14.0);
    open(&bench).write_register(regs::MEMORY_WRITE_ENABLE, 1).unwrap();
    let file = OpenOptions::new().read(true).write(true).open(bench.path()).unwrap();
    for bytes in [6_000_000, 96, 32] {
        let error = file.write_all_at(&vec![1; bytes], 0).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(22), "{bytes} bytes");
    }
    assert_eq!(file.read_at(&mut [0; 64], 8).unwrap_err().raw_os_error(), Some(22));
    file.write_all_at(&[5; 64], 128).unwrap();
    assert!(bench.served.traffic.counts[2].load(Ordering::Relaxed) >= 4);
}

#[test]
#[ignore = "needs /dev/fuse, and root or fusermount3: cargo xtask ci"]
fn no_trigger_is_lost_to_a_driver_that_forgets_early_interrupts() {
    let bench = bench("l0", Dialect::Ess, 500.0);
    for polls in [None, Some(Duration::from_micros(1))] {
        let mut board = open(&bench);
        let mut daq = Daq::new(polls, Some(500.0));
        board.configure(320).unwrap();
        daq.begin_account(&mut board);
        for _ in 0..20 {
            daq.acquire(&mut board).unwrap();
            daq.counts.read_out += 1;
        }
        let ledger = daq.ledger();
        assert!(ledger.closes(), "{ledger}");
        assert_eq!(ledger.delivered, 20);
    }
}

#[test]
#[ignore = "needs /dev/fuse, and root or fusermount3: cargo xtask ci"]
fn a_whole_run_through_the_real_device_path_verifies_every_function() {
    let bench = bench("l2-0", Dialect::Ess, 14.0);
    let record = measured(bench.path(), 3, &[("samples", 100_000), ("function", 99)]);
    assert_eq!(record.outcome, Outcome::Ok);
    assert!(!record.engine.emulated, "by its path it is a device like any other");
    assert_eq!(record.lanes[0].stages.len(), 9);
}

#[test]
#[ignore = "needs /dev/fuse, and root or fusermount3: cargo xtask ci"]
fn a_board_that_disappears_fails_its_lane_while_the_other_finishes() {
    let gone = bench("l0:gone-after=4", Dialect::Ess, 14.0);
    let there = bench("l0", Dialect::Ess, 14.0);
    let devices = format!("{} {}", gone.path(), there.path());
    let record = measured(&devices, 20, &[("samples", 1600)]);
    let reason = record.lanes[0].outcome.reason().unwrap();
    assert!(reason.contains("No such device"), "{reason}");
    assert_eq!(record.lanes[1].outcome, Outcome::Ok);
    assert_eq!(record.lanes[1].stages[0].sample_ns.len(), 20);
}

/// A program ends its waiting thread so; status 1 is the driver's.
#[test]
#[ignore = "needs /dev/fuse, and root or fusermount3: cargo xtask ci"]
fn a_waiting_thread_is_released() {
    let bench = bench("l0", Dialect::Ess, 0.1);
    let path = bench.path().to_owned();
    let waiter = std::thread::spawn(move || {
        let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
        let mut words = [10_000_u32, 0, 7];
        daqmeter_sys::ioctl_words(&file, 0xC00C_7302, &mut words, "wait").unwrap();
        words[2]
    });
    let file = OpenOptions::new().read(true).write(true).open(bench.path()).unwrap();
    while !waiter.is_finished() {
        daqmeter_sys::ioctl_words(&file, 0xC00C_7303, &mut [0_u32; 3], "release").unwrap();
    }
    assert_eq!(waiter.join().unwrap(), 1);
}

/// The mount of a board that a program had open stayed, and nothing could be served there again.
#[test]
#[ignore = "needs /dev/fuse, and root or fusermount3: cargo xtask ci"]
fn serving_ends_while_a_program_has_the_file_open() {
    let bench = bench("l0", Dialect::Ess, 14.0);
    let user = std::fs::File::open(bench.path()).unwrap();
    let Bench { served, _dir: dir } = bench;
    let path = served.path.clone();
    drop(served);
    assert!(!path.exists() && !path.is_symlink());
    let board = EmulatedCrate::new(Profile::default(), false).board("l0", "l0").unwrap();
    drop((serve(board, &path, Dialect::Ess).unwrap(), user, dir));
}
