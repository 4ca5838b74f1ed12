use daqmeter_wire::etherbone::cycle::{Op, StatusCheck, encode};
use daqmeter_wire::etherbone::{EbLayout, Endian, Width, Widths};

use super::*;
use crate::bus::{BusTiming, Description};

fn slave() -> Slave {
    let description = Description::memory(0x10000, 0x1ffff, Widths::ALL, Endian::Big);
    Slave::new(description.build().unwrap())
}

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    digits
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}

fn answer_of(slave: &mut Slave, request: &str) -> Vec<u8> {
    let mut answer = Vec::new();
    slave.datagram(0, &hex(request), &mut answer);
    answer
}

#[test]
fn golden_answers_of_the_c_slave() {
    let mut slave = slave();
    let mut check = |request: &str, wanted: &str| {
        assert_eq!(answer_of(&mut slave, request), hex(wanted), "{request}")
    };
    check("4e6f1144 00000086", "4e6f16ff 00000086");
    check("4e6f1444 a80f0100 00010000 dddddddd", "");
    check(
        "4e6f1044 a00f0001 00008000 00010000 e80f0001 00008001 00000004",
        "4e6f1444 060f0100 00008000 dddddddd 0e0f0100 00008001 00000000",
    );
    check("4e6f1044 a80f0001 00008000 00010000", "4e6f1444 0e0f0100 00008000 dddddddd");
    check(
        "4e6f1044 a00f0001 00008000 000a0000 e80f0001 00008001 00000004",
        "4e6f1444 060f0100 00008000 00000000 0e0f0100 00008001 00000001",
    );
    check(
        "4e6f1044 e80f0101 00010000 11223344 00008001 00000004",
        "4e6f1444 0e0f0100 00008001 00000000",
    );
    check(
        "4e6f1088 00000000 a0ff0001 00000000 0000000000008000 0000000000010000
         e8ff0001 00000000 0000000000008001 0000000000000000",
        "4e6f1488 00000000 06ff0100 00000000 0000000000008000 1122334400000000
         0eff0100 00000000 0000000000008001 0000000000000000",
    );
    check("4e6f1042 a8030001 00008000 00010002", "4e6f1442 0e030100 00008000 00003344");
}

#[test]
fn a_byte_of_a_little_endian_memory_is_the_golden_one() {
    let description = Description::memory(0x10000, 0x1ffff, Widths::ALL, Endian::Little);
    let mut slave = Slave::new(description.build().unwrap());
    answer_of(&mut slave, "4e6f1444 a80f0100 00010000 11223344");
    let answer = answer_of(&mut slave, "4e6f1044 a8020001 00008000 00010001");
    assert_eq!(answer, hex("4e6f1444 0e020100 00008000 00003300"));
}

#[test]
fn byte_enables_that_are_no_run_execute_nothing_and_are_an_error() {
    let mut slave = slave();
    let answer = answer_of(
        &mut slave,
        "4e6f1044 a0060101 00010000 ffffffff 00008000 00010000 e80f0001 00008001 00000004",
    );
    assert_eq!(answer, hex("4e6f1444 06060100 00008000 00000000 0e0f0100 00008001 00000003"));
    assert_eq!(answer_of(&mut slave, "4e6f1044 a80f0001 00008000 00010000")[12..], [0, 0, 0, 0]);
}

#[test]
fn what_must_not_be_answered_is_not() {
    let mut slave = slave();
    for request in [
        "",
        "4e6f11",
        "4e6f1144 000000",
        "4e6f1144 00000000 0000",
        "4e6f1644 00000086",
        "4e6f10ff a80f0001 00008000 00010000",
        "4e6f1044 a80f0001 00008000",
        "4e6f2044 a80f0001 00008000 00010000",
        "4e6f1444 a80f0001 00008000 00010000",
        "deadbeef",
    ] {
        assert_eq!(answer_of(&mut slave, request), [0; 0], "{request}");
    }
    assert_eq!(answer_of(&mut slave, "4e6f1144 00000001").len(), 8);
}

#[test]
fn lone_headers_padding_and_truncated_datagrams() {
    for (request, wanted) in [
        // A cycle whose last record only writes ends with a header alone.
        (
            "4e6f1044 a00f0001 00008000 00010000 a80f0100 00010000 00000005",
            "4e6f1444 060f0100 00008000 00000000 08000000",
        ),
        // Padding of zero words is skipped.
        ("4e6f1044 00000000 a80f0001 00008000 00010000", "4e6f1444 0e0f0100 00008000 00000000"),
        // A truncated datagram is answered as far as it is whole.
        (
            "4e6f1044 a00f0001 00008000 00010000 e80f0001 00008001",
            "4e6f1444 060f0100 00008000 00000000",
        ),
    ] {
        assert_eq!(answer_of(&mut slave(), request), hex(wanted), "{request}");
    }
}

#[test]
fn the_litex_dialect_is_told_by_its_packets() {
    let mut slave = slave();
    assert_eq!(
        answer_of(&mut slave, "4e6f1044 00000000 000f0200 00010000 00000007 00000008"),
        [0; 0]
    );
    let answer = answer_of(&mut slave, "4e6f1044 00000000 000f0002 000000aa 00010000 00010004");
    assert_eq!(answer, hex("4e6f1044 00000000 000f0200 000000aa 00000007 00000008"));
    assert_eq!(
        answer_of(&mut slave, "4e6f1144 0000000000000000"),
        hex("4e6f1244 0000000000000000")
    );
    assert_eq!((slave.counts.litex, slave.counts.probes), (2, 1));
}

#[test]
fn silent_registers_hold_the_answer_until_the_bus_timeout() {
    let mut slave = Slave::new(Description::timing_receiver().build().unwrap());
    slave.bus.timing = BusTiming { timeout_ns: 1_000_000, ..BusTiming::default() };
    let mut answer = Vec::new();
    let silent = hex("4e6f1044 a00f0001 00008000 00180110 e80f0001 00008001 00000004");
    assert_eq!(slave.datagram(500, &silent, &mut answer), 1_000_500);
    assert_eq!(answer[24..], hex("00000001"));
}

fn stream_bytes(cycles: &[Vec<Op>]) -> Vec<u8> {
    let mut bytes = hex("4e6f1144 00000001");
    for (index, ops) in cycles.iter().enumerate() {
        let mut out = vec![0; 1 << 16];
        let tag = 0x8000 + 2 * u16::try_from(index).unwrap();
        let encoded = encode(ops, EbLayout::L32, tag, StatusCheck::Status, &mut out).unwrap();
        bytes.extend(&out[..encoded.bytes]);
    }
    bytes
}

fn reads(count: u64) -> Vec<Op> {
    (0..count).map(|index| Op::read(0x10000 + 4 * index, Width::W32)).collect()
}

#[test]
fn a_stream_cut_anywhere_gives_the_same_answers() {
    let bytes =
        stream_bytes(&[reads(1), reads(40), vec![Op::write(0x10000, 5, Width::W32)], reads(3)]);
    let mut whole = Vec::new();
    Stream::default().feed(&mut slave(), 0, &bytes, &mut whole).unwrap();
    assert!(whole.len() > 48 * 4);
    for step in [1, 2, 3, 5, 7, 64] {
        let (mut slave, mut stream, mut answer) = (slave(), Stream::default(), Vec::new());
        for part in bytes.chunks(step) {
            stream.feed(&mut slave, 0, part, &mut answer).unwrap();
        }
        assert_eq!(answer, whole, "in steps of {step}");
        assert_eq!(stream.waiting_bytes(), 0);
    }
}

#[test]
fn nothing_of_a_cycle_is_executed_before_all_of_it_is_there() {
    let ops = vec![Op::write(0x10000, 5, Width::W32), Op::read(0x10000, Width::W32)];
    let bytes = stream_bytes(&[ops]);
    let (mut slave, mut stream, mut answer) = (slave(), Stream::default(), Vec::new());
    stream.feed(&mut slave, 0, &bytes[..bytes.len() - 1], &mut answer).unwrap();
    assert_eq!(slave.counts.operations, 0);
    assert!(stream.waiting_bytes() > 0);
    stream.feed(&mut slave, 0, &bytes[bytes.len() - 1..], &mut answer).unwrap();
    assert_eq!(slave.counts.operations, 3);
}

#[test]
fn both_framings_and_both_dialects_are_served_on_one_connection() {
    let (mut slave, mut stream) = (slave(), Stream::default());
    let mut exchange = |request: &str| {
        let mut answer = Vec::new();
        stream.feed(&mut slave, 0, &hex(request), &mut answer).unwrap();
        answer
    };
    let framed = exchange("4e6f1044 a80f0001 00008000 00010000 a80f0001 00008002 00010004");
    assert_eq!(framed, hex("4e6f1444 0e0f0100 00008000 00000000 0e0f0100 00008002 00000000"));
    let litex = exchange("4e6f1044 00000000 000f0001 00000000 00010000");
    assert_eq!(litex, hex("4e6f1044 00000000 000f0100 00000000 00000000"));
    assert_eq!(exchange("4e6f1144 00000009"), hex("4e6f16ff 00000009"));
    assert_eq!(exchange("a80f0001 00008000 00010000"), hex("0e0f0100 00008000 00000000"));
}

#[test]
fn addresses_are_cut_to_their_width_and_of_several_widths_the_widest_counts() {
    let mut slave =
        Slave::new(Description::memory(0, 0xffff, Widths::ALL, Endian::Big).build().unwrap());
    let mut check = |request: &str, wanted: &str| {
        assert_eq!(answer_of(&mut slave, request), hex(wanted), "{request}")
    };
    // Addresses of 16 bits in fields of 32: the C slave ignores the rest.
    check("4e6f1424 a80f0100 abcd1000 11223344", "");
    check("4e6f1024 a80f0001 00008000 dcba1000", "4e6f1424 0e0f0100 00008000 11223344");
    // A header with several widths: the slave takes the widest that it supports, and returns the
    // header unchanged.
    check("4e6f1064 a80f0001 00008000 00001000", "4e6f1464 0e0f0100 00008000 11223344");
    slave.address = Widths::only(Width::W32);
    assert_eq!(
        answer_of(&mut slave, "4e6f10f4 a80f0001 00008000 00001000"),
        hex("4e6f14f4 0e0f0100 00008000 11223344")
    );
    assert!(answer_of(&mut slave, "4e6f1024 a80f0001 00008000 00001000").is_empty());
}

#[test]
fn config_reads_have_only_the_lanes_that_are_enabled() {
    let mut slave = slave();
    let failed = "a00f0001 00008000 00050000";
    for (select, wanted) in [
        ("0f", "00000001"),
        ("03", "00000001"),
        ("01", "00000001"),
        ("0c", "00000000"),
        // No run of lanes: nothing is read.
        ("06", "00000000"),
    ] {
        let request = format!("4e6f1044 {failed} e8{select}0001 00008001 00000004");
        let answer =
            format!("4e6f1444 060f0100 00008000 00000000 0e{select}0100 00008001 {wanted}");
        assert_eq!(answer_of(&mut slave, &request), hex(&answer), "{select}");
    }
}

#[test]
fn a_stream_that_is_not_etherbone_is_ended() {
    let feed = |bytes: &[u8]| Stream::default().feed(&mut slave(), 0, bytes, &mut Vec::new());
    let why = |bytes: &[u8]| feed(bytes).unwrap_err().to_string();
    assert!(why(b"GET / HTTP/1.1").contains("magic"));
    assert!(why(&hex("4e6f1004 00000000 00000000")).contains("no width in common"));
    let mut narrow = slave();
    narrow.data = Widths::only(Width::W8);
    let mut answer = Vec::new();
    let fault = Stream::default().feed(&mut narrow, 0, &hex("4e6f1144 00000001"), &mut answer);
    assert!(fault.unwrap_err().to_string().contains("no width in common"));
    assert_eq!(answer, hex("4e6f16f1 00000001"));
}

#[test]
fn a_cycle_that_never_ends_is_ended() {
    let (mut slave, mut stream) = (slave(), Stream::default());
    stream.feed(&mut slave, 0, &hex("4e6f1144 00000001"), &mut Vec::new()).unwrap();
    let record = [&[0, 0x0F, 255, 0, 0, 1, 0, 0][..], &[0; 4 * 255]].concat();
    let records = 1 + MAX_CYCLE_BYTES / record.len();
    let fault =
        (0..records + 2).find_map(|_| stream.feed(&mut slave, 0, &record, &mut Vec::new()).err());
    assert!(fault.unwrap().to_string().contains("divide it"));
}

#[test]
fn cyc_ends_a_cycle_and_a_datagram_may_hold_many() {
    let mut slave = slave();
    let two = "4e6f1044 a80f0001 00008000 00010000 a80f0001 00008002 00010004";
    let answer = answer_of(&mut slave, two);
    assert_eq!(answer, hex("4e6f1444 0e0f0100 00008000 00000000 0e0f0100 00008002 00000000"));
    assert_eq!(slave.counts.cycles, 2);
    // A cycle may not span datagrams: complete operations are executed, nothing is held.
    assert_eq!(answer_of(&mut slave, "4e6f1044 a00f0001 00008000 00010000").len(), 16);
    assert_eq!(answer_of(&mut slave, "4e6f1044 a80f0001 00008002 00010000").len(), 16);
}

#[test]
fn per_operation_errors_are_shifted_in_but_not_by_config_operations_or_sdb_reads() {
    let mut slave = Slave::new(Description::timing_receiver().build().unwrap());
    // Good, bad, config read, table read, bad; then the register.
    let answer = answer_of(
        &mut slave,
        "4e6f1044 a00f0002 00008000 00010000 70000000 e00f0001 00008000 0000000c
         a00f0002 00008000 00000300 70000000 e80f0001 00008001 00000004",
    );
    assert_eq!(answer[answer.len() - 4..], hex("00000005"));
}

#[test]
fn config_space_is_a_bus_of_its_own() {
    let mut slave = Slave::new(Description::timing_receiver().build().unwrap());
    let pointer = answer_of(&mut slave, "4e6f1044 e80f0002 00008000 00000008 0000000c");
    assert_eq!(pointer, hex("4e6f1444 0e0f0200 00008000 00000000 00000300"));
    answer_of(&mut slave, "4e6f1444 ac0f0100 0000000c deadbeef");
    assert_eq!(answer_of(&mut slave, "4e6f1044 e80f0002 00008000 00000008 0000000c"), pointer);
    assert_eq!(answer_of(&mut slave, "4e6f1044 e80f0001 00008000 0000002c")[12..], hex("00000002"));
}
