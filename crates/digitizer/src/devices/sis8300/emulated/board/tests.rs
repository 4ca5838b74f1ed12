//! Tests of one emulated board.

use super::*;
use crate::devices::sis8300::emulated::Profile;

fn board(name: &str) -> EmulatedBoard {
    let crate_ = EmulatedCrate::new(Profile::default(), false);
    crate_.board(&format!("emu:{name}"), name).unwrap()
}

#[test]
fn the_register_file_identifies_the_board_and_protects_what_is_read_only() {
    let mut board = board("ku0");
    assert_eq!(Model::from_id(board.read_register(regs::ID).unwrap()), Some(Model::KU));
    board.write_register(regs::ID, 0).unwrap();
    assert_eq!(Model::from_id(board.read_register(regs::ID).unwrap()), Some(Model::KU));
    assert_eq!(board.read_register(regs::ACQUISITION).unwrap(), regs::STATUS_MEMORY_READY);
}

#[test]
fn an_acquisition_leaves_data_its_number_end_addresses_and_an_interrupt() {
    let mut board = board("l0");
    board.write_register(regs::SAMPLE_LENGTH, 1).unwrap(); // 32 samples per channel
    for channel in 0..regs::CHANNELS {
        let first_block = 2 * channel;
        board.write_register(regs::CHANNEL_ADDRESS + channel, first_block).unwrap();
    }
    for acquisition in 1..=3_u16 {
        board.write_register(regs::ACQUISITION, regs::ACQUISITION_START).unwrap();
        assert!(board.wait(Duration::from_secs(5)).unwrap());
        assert_eq!(board.read_register(regs::ACQUISITION).unwrap() & 3, 0);
        let mut bytes = [0; 640];
        assert_eq!(board.read(0, &mut bytes).unwrap(), 640);
        for (index, pair) in bytes.as_chunks::<2>().0.iter().enumerate() {
            // The number takes the first four samples of each channel.
            let expected = match index % 32 {
                0 => acquisition,
                1..4 => 0,
                _ => pattern_sample(index as u64),
            };
            assert_eq!(u16::from_le_bytes(*pair), expected, "sample {index}");
            assert_eq!(board.expected_sample(index as u64), Some(expected));
        }
    }
    assert_eq!(board.read_register(regs::CHANNEL_ADDRESS).unwrap(), 2);
}

/// Regression: channels were packed regardless of registers 0x120 to 0x129.
#[test]
fn channels_lie_where_their_address_registers_say_and_disabled_ones_nowhere() {
    let mut board = board("l0");
    board.write_register(regs::SAMPLE_LENGTH, 1).unwrap();
    // Channel 1 at block 100, channel 2 at block 40; the others are disabled.
    board.write_register(regs::CHANNEL_ADDRESS, 100).unwrap();
    board.write_register(regs::CHANNEL_ADDRESS + 1, 40).unwrap();
    board.write_register(regs::CHANNEL_ADDRESS + 2, 7).unwrap();
    board.write_register(regs::SAMPLE_CONTROL, 0x3FC).unwrap();
    for acquisition in 1..=2 {
        board.write_register(regs::ACQUISITION, regs::ACQUISITION_START).unwrap();
        board.read_register(regs::ACQUISITION).unwrap();
        let mut sample = |block: u64| {
            let mut bytes = [0; 16];
            board.read(block * 32, &mut bytes).unwrap();
            u16::from_le_bytes([bytes[0], bytes[1]])
        };
        assert_eq!((sample(100), sample(40)), (acquisition, acquisition));
        assert_eq!((sample(7), sample(0)), (pattern_sample(7 * 16), pattern_sample(0)));
        let mut end = |channel| board.read_register(regs::CHANNEL_ADDRESS + channel).unwrap();
        assert_eq!((end(0), end(1), end(2)), (102, 42, 7));
    }
}

#[test]
fn a_transfer_ends_when_it_is_to_stop_and_the_next_one_is_whole() {
    // Slower than any host's copy: the bytes flow in an hour and 40 minutes.
    let mut profile = Profile::default();
    profile.board.iter_mut().for_each(|board| board.own_bytes_per_s = 1000.0);
    let crate_ = EmulatedCrate::new(profile, true);
    let mut board = crate_.board("emu:l0", "l0").unwrap();
    let stop = StopFlag::default();
    board.set_stop_flag(&stop);
    stop.set();
    let mut bytes = vec![0; 6_000_000];
    assert_eq!(board.read(0, &mut bytes), Err(Fault::interrupted()));
    board.set_stop_flag(&StopFlag::default());
    assert_eq!(board.read(0, &mut bytes[..64]), Ok(64));
}

/// Register 0x230 stayed 1 after an error (issue 14, A12).
#[test]
fn card_memory_is_protected_again_after_a_write_that_failed() {
    let mut board = board("l0:write-error-at=7");
    let failed = BoardCommands::write(&mut board, 0, &[1; 6400]).unwrap_err();
    assert!(failed.0.contains("DMA write 7 failed"), "{failed}");
    assert_eq!(board.read_register(regs::MEMORY_WRITE_ENABLE).unwrap(), 0);
}

#[test]
fn transfers_that_a_real_board_cannot_do_are_refused() {
    let mut board = board("l0");
    assert!(board.dma_write(0, &[1; 64]).unwrap_err().0.contains("0x230"));
    assert!(board.read(2 << 30, &mut [0; 16]).unwrap_err().0.contains("leave the card's memory"));
    assert!(board.read(u64::MAX, &mut [0; 16]).is_err());
    board.write_register(regs::MEMORY_WRITE_ENABLE, 1).unwrap();
    for (offset, bytes) in [(0, 6_000_000), (0, 32), (0, 192), (32, 64), (0, 0)] {
        assert!(board.dma_write(offset, &vec![1; bytes]).is_err(), "{bytes} bytes to {offset}");
    }
    for (offset, bytes) in [(2, 64), (0, 30), (8, 16)] {
        assert!(board.read(offset, &mut vec![0; bytes]).is_err(), "{bytes} bytes from {offset}");
    }
    let bytes: Vec<u8> = (0..=255).cycle().take(6400).collect();
    assert_eq!(BoardCommands::write(&mut board, 128, &bytes).unwrap(), 6400);
    assert_eq!(board.writes, 100, "64 bytes each");
    let mut back = vec![0; 6400];
    board.read(128, &mut back).unwrap();
    assert_eq!(back, bytes);
}

#[test]
fn mapped_reads_deliver_the_same_samples_up_to_the_drivers_buffer() {
    let mut board = board("l0");
    board.map(4096).unwrap();
    assert_eq!(board.read_mapped(64, 4096).unwrap(), 4096);
    assert_eq!(board.mapped(2048)[5], pattern_sample(32 + 5));
    assert!(board.map((4 << 20) + 2).unwrap_err().0.contains("-B 0"));
}

#[test]
fn asked_for_faults_happen() {
    assert!(board("l0:gone-after=0").read_register(0).unwrap_err().0.contains("gone"));
    let mut silent = board("l0:no-interrupt-after=1");
    for comes in [true, false] {
        silent.write_register(regs::ACQUISITION, regs::ACQUISITION_START).unwrap();
        assert_eq!(silent.wait(Duration::from_millis(1)).unwrap(), comes);
        assert_eq!(silent.read_register(regs::ACQUISITION).unwrap() & 3, 0);
    }
    let crate_ = EmulatedCrate::new(Profile::default(), false);
    for wrong in ["l0:explode=1", "l0:gone-after", "l0:gone-after=x", "l0:gone-after=1,,"] {
        let refused = crate_.board("emu:l0", wrong).err().map(|fault| fault.0);
        assert_eq!(refused.is_some(), !wrong.ends_with(','), "{wrong}");
        assert!(refused.is_none_or(|why| why.starts_with("`emu:l0`: fault: ")), "{wrong}");
    }
    let unknown = crate_.board("emu:l0", "l0:explode=1").err().unwrap().0;
    assert!(unknown.contains("`gone-after`"), "{unknown}");
}

#[test]
fn no_trigger_is_lost_when_daq_done_comes_between_arm_and_wait() {
    let mut board = board("l0");
    board.set_trigger_rate(1e6);
    board.write_register(regs::SAMPLE_CONTROL, regs::EXTERNAL_TRIGGER).unwrap();
    board.begin_account();
    board.write_register(regs::ACQUISITION, regs::ACQUISITION_ARM).unwrap();
    // The trigger fires and the (unpaced, instant) acquisition ends before the wait begins.
    while board.read_register(regs::ACQUISITION).unwrap() & 3 != 0 {}
    assert!(board.wait(Duration::from_secs(5)).unwrap());
    assert_eq!(board.trigger_account().unwrap().taken, 1);
}

#[test]
fn a_name_that_is_no_board_is_refused_with_an_example() {
    for (name, wanted) in [
        ("l0", Some((Model::L, 0))),
        ("l2", Some((Model::L, 2))),
        ("l2-1", Some((Model::L2, 1))),
        ("ku12", Some((Model::KU, 12))),
        ("x0", None),
        ("l", None),
    ] {
        assert_eq!(parse_name(name), wanted, "{name}");
    }
    let crate_ = EmulatedCrate::new(Profile::default(), false);
    let error = crate_.board("emu:q1", "q1").err().unwrap();
    assert!(error.0.contains("emu:l0"), "{error}");
}
