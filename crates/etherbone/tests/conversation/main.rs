//! Tests of client and server over every transport, on loopback only.

#![allow(clippy::unwrap_used, reason = "a test stops where it fails")]

mod forged;
mod played;

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv6Addr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use daqmeter_etherbone::bus::Description;
use daqmeter_etherbone::link::LinkProfile;
use daqmeter_etherbone::scan;
use daqmeter_etherbone::server::{Running, ServerEvent};
use daqmeter_etherbone::transport::{Bridge, Emulated};
use daqmeter_etherbone::tunnel::TunnelServer;
use daqmeter_etherbone::{
    Address, Client, ClientOptions, EbDialect, EbError, EbServer, ServerOptions, Slave,
};
use daqmeter_harness::Resolved;
use daqmeter_wire::etherbone::cycle::Op;
use daqmeter_wire::etherbone::cycle::StatusCheck::{Silent, Status};
use daqmeter_wire::etherbone::sdb::ids;
use daqmeter_wire::etherbone::{EbLayout, Endian, Lanes, Width, Widths};

const MEMORY: u64 = 0x10000;

fn slave() -> Slave {
    let mut slave = Slave::new(Description::timing_receiver().build().unwrap());
    let timing = daqmeter_etherbone::bus::BusTiming { timeout_ns: 2_000_000, ..Default::default() };
    slave.bus.timing = timing;
    slave
}

fn serve() -> Running {
    spawned(slave(), ServerOptions::loopback())
}

fn quick() -> ClientOptions {
    ClientOptions {
        probe_timeout: Duration::from_secs(2),
        timeout: Duration::from_secs(5),
        ..ClientOptions::default()
    }
}

const W32: Widths = Widths::only(Width::W32);

fn open_with(address: &str, options: &ClientOptions) -> Result<Client, EbError> {
    Client::open(&Address::parse(address).unwrap(), options)
}

fn open(address: &str) -> Client {
    open_with(address, &quick()).unwrap()
}

fn at(proto: &str, server: &Running) -> String {
    format!("{proto}/127.0.0.1/{}", server.port)
}

fn spawned(slave: Slave, options: ServerOptions) -> Running {
    EbServer::bind(slave, options).unwrap().spawn(None).unwrap()
}

/// Reads a word as a cycle of its own.
fn load(client: &mut Client, address: u64) -> Result<u64, EbError> {
    let outcome = client.cycle(&[Op::read(address, client.layout().data)], Status)?;
    assert!(outcome.failed.is_empty());
    Ok(outcome.values[0])
}

fn store(client: &mut Client, address: u64, value: u64) {
    let write = Op::write(address, value, client.layout().data);
    assert!(client.cycle(&[write], Status).unwrap().failed.is_empty());
}

fn read(word: u64) -> Op {
    Op::read(MEMORY + 4 * word, Width::W32)
}

fn write(word: u64, value: u64) -> Op {
    Op::write(MEMORY + 4 * word, value, Width::W32)
}

fn converse(client: &mut Client) {
    store(client, MEMORY + 8, 0x1122_3344);
    assert_eq!(load(client, MEMORY + 8).unwrap(), 0x1122_3344);
    let port = client.layout().data;
    let nowhere = [Op::read(0x9000_0000, port)];
    assert_eq!(client.cycle(&nowhere, Status).unwrap().failed, [0]);

    let bad = |index: usize| index % 37 == 5;
    let ops: Vec<Op> = (0..150)
        .map(|index| Op::read(if bad(index) { 0x9000_0000 } else { MEMORY }, port))
        .collect();
    let failed = client.cycle(&ops, Status).unwrap().failed.clone();
    assert_eq!(failed, (0..150).filter(|index| bad(*index)).collect::<Vec<_>>());

    let writes: Vec<Op> =
        (0..64).map(|word| Op::write(MEMORY + 8 * word, 1000 + word, port)).collect();
    client.cycle(&writes, Status).unwrap();
    let mut seen = [0; 500];
    let mut pipeline = client.pipeline(|done| {
        done.result.unwrap();
        let word = done.token % 64;
        assert_eq!(done.words, [1000 + word, 1000 + word]);
        seen[usize::try_from(done.token).unwrap()] += 1;
    });
    for token in 0..500 {
        let read = Op::read(MEMORY + 8 * (token % 64), port);
        pipeline.submit(&[read, read], Status, token).unwrap();
    }
    pipeline.finish().unwrap();
    assert_eq!(seen, [1; 500]);
    let counts = client.counts();
    assert_eq!(
        (counts.issued, counts.completed, counts.stray, counts.malformed),
        (counts.completed, counts.issued, 0, 0)
    );
}

#[test]
fn every_way_to_a_slave_passes_the_suite() {
    let server = serve();
    let tunnel = TunnelServer::bind(0).unwrap();
    let tunnelled =
        format!("tunnel/127.0.0.1/{}/127.0.0.1/{}", tunnel.port().unwrap(), server.port);
    std::thread::spawn(move || tunnel.run(|_, _| {}));
    for way in [&at("udp4", &server), &at("tcp", &server), &tunnelled] {
        converse(&mut open(way));
    }
    let counts = server.stop().unwrap();
    assert_eq!((counts.probes, counts.refused), (3, 0));
    for bridge in ["emu/perfect", "emu/gige", "emu/scu-pcie-2018"] {
        converse(&mut open(bridge));
    }
}

#[test]
fn a_pseudo_terminal_passes_the_suite_for_one_client_after_the_other() {
    let options = ServerOptions { pty: true, ..ServerOptions::loopback() };
    let server = EbServer::bind(slave(), options).unwrap();
    let path = server.pty_path().unwrap().trim_start_matches("/dev/").to_owned();
    let _server = server.spawn(None).unwrap();
    converse(&mut open(&format!("dev/{path}")));
    converse(&mut open(&format!("dev/{path}")));
}

#[test]
#[ignore = "needs IPv6 on loopback"]
fn ipv6_passes_the_suite() {
    let bind = vec![IpAddr::V6(Ipv6Addr::LOCALHOST)];
    let server = spawned(slave(), ServerOptions { bind, ..ServerOptions::loopback() });
    converse(&mut open(&format!("udp6/::1/{}", server.port)));
    converse(&mut open(&format!("tcp6/::1/{}", server.port)));
}

/// Serves like the C library of 2014 on TCP: one receive must bring one message with its header.
/// Other bytes end the connection.
fn serve_framed() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let (mut slave, mut buffer, mut answer) = (slave(), [0; 4104], Vec::new());
            while let Ok(bytes @ 1..) = stream.read(&mut buffer) {
                answer.clear();
                slave.datagram(0, &buffer[..bytes], &mut answer);
                if slave.counts.refused > 0 || stream.write_all(&answer).is_err() {
                    break;
                }
            }
        }
    });
    port
}

#[test]
fn a_conversation_with_a_server_that_frames_messages_on_tcp() {
    let address = format!("tcp/127.0.0.1/{}", serve_framed());
    converse(&mut open(&address));
    // Windows of one and of three cycles keep to one message on its way, too; unchecked writes are
    // answered.
    for window_cycles in [1, 3] {
        let options = ClientOptions { window_cycles, ..quick() };
        let mut client = open_with(&address, &options).unwrap();
        let mut pipeline = client.pipeline(|done| done.result.unwrap());
        for token in 0..50 {
            let port = Width::W64;
            let ops = [Op::write(MEMORY + 8 * token, token, port)];
            pipeline.submit(&ops, Silent, token).unwrap();
        }
        pipeline.finish().unwrap();
        assert_eq!(load(&mut client, MEMORY + 8 * 49).unwrap(), 49);
    }
    let reads = vec![Op::read(MEMORY, Width::W64); 1000];
    let mut client = open(&address);
    let error = client.cycle(&reads, Status).unwrap_err();
    assert!(error.to_string().contains("4000 bytes"), "{error}");
}

#[test]
fn a_million_reads_in_one_cycle_go_over_tcp_and_more_are_refused_before_they_are_sent() {
    let server = serve();
    let address = at("tcp", &server);
    let options = ClientOptions { data: W32, timeout: Duration::from_secs(60), ..quick() };
    let mut client = open_with(&address, &options).unwrap();
    store(&mut client, MEMORY, 0x1234);
    let mut reads = vec![Op::read(MEMORY, Width::W32); 1_000_000];
    let outcome = client.cycle(&reads, Status).unwrap();
    assert_eq!(outcome.values.len(), reads.len());
    assert!(outcome.failed.is_empty() && outcome.values.iter().all(|value| *value == 0x1234));
    reads.resize(5_000_000, reads[0]);
    let error = client.cycle(&reads, Status).unwrap_err();
    assert!(error.to_string().contains("divide it"), "{error}");
    assert_eq!(load(&mut client, MEMORY).unwrap(), 0x1234, "the way is still good");
}

#[test]
fn every_width_on_either_side() {
    let server = serve();
    for layout in EbLayout::all().filter(|layout| layout.address >= Width::W32) {
        let (address, data) = (Widths::only(layout.address), Widths::only(layout.data));
        let options = ClientOptions { address, data, ..quick() };
        for proto in ["udp", "tcp"] {
            let mut client = open_with(&at(proto, &server), &options).unwrap();
            assert_eq!(client.layout(), layout);
            let value = 0x1122_3344_5566_7788 & layout.data.mask();
            store(&mut client, MEMORY, value);
            assert_eq!(load(&mut client, MEMORY).unwrap(), value, "{layout:?} over {proto}");
        }
    }
}

#[test]
fn the_self_describing_bus_is_read_through_every_bridge() {
    let server = serve();
    for address in [at("udp", &server), at("tcp", &server)] {
        let mut client = open(&address);
        let whole = scan::scan(&mut client, true).unwrap();
        let eca = whole.devices(ids::ECA)[0];
        assert_eq!((eca.first, eca.path.len()), (Some(0x0010_1000), 2));
        assert!(whole.found.iter().any(|found| found.path.len() == 3));
        assert_eq!(whole.devices(ids::TLU).len(), 1);
        assert!(whole.unread.is_empty(), "{:?}", whole.unread);
        let device = scan::reach_of(&mut client, 0x0019_0004).unwrap();
        assert_eq!(device.endian, Some(Endian::Little));
        let error = scan::reach_of(&mut client, 0x7000_0000).unwrap_err().to_string();
        assert_eq!(error, "failed to find SDB record: invalid address");
        let flat = scan::scan(&mut client, false).unwrap();
        assert!(flat.found.len() < whole.found.len());
    }
}

fn scan_of(table: &[u8]) -> Result<scan::Scan, EbError> {
    scan_from(0x10000, table)
}

fn scan_from(root: u64, memory: &[u8]) -> Result<scan::Scan, EbError> {
    let description = Description::memory(0x10000, 0x1ffff, Widths::ALL, Endian::Big);
    let mut client = Client::over(
        Box::new(Emulated::new(
            &"perfect".parse::<Resolved<Bridge>>().unwrap(),
            Slave::new(description.build().unwrap()),
        )),
        &ClientOptions { data: W32, ..quick() },
        "emulated",
    )
    .unwrap();
    // The table of the software bus is read-only; a bridge is followed into memory instead.
    let writes: Vec<Op> = memory
        .chunks(4)
        .enumerate()
        .map(|(word, bytes)| {
            write(word as u64, u32::from_be_bytes(bytes.try_into().unwrap()).into())
        })
        .collect();
    for part in writes.chunks(64) {
        client.cycle(part, Status).unwrap();
    }
    scan::scan_at(&mut client, root, true)
}

#[test]
fn tables_that_lie_or_loop_are_refused_and_what_is_beside_them_is_found() {
    use daqmeter_wire::etherbone::sdb::{Component, Product, SdbDevice, SdbRecord, Text};
    let component = |first, last| Component {
        first,
        last,
        product: Product { vendor: 1, device: 2, version: 3, date: 4, name: Text::new("liar") },
    };
    let head = |records| {
        let component = component(0, u64::MAX);
        SdbRecord::Interconnect { records, version: 1, bus_type: 0, component }.emit()
    };
    let device = |first| {
        let (component, bus_specific) = (component(first, first + 0xff), 4);
        let (abi_class, abi_major, abi_minor) = (0, 1, 0);
        SdbRecord::Device(SdbDevice { abi_class, abi_major, abi_minor, bus_specific, component })
            .emit()
    };
    let bridge = |child| SdbRecord::Bridge { child, component: component(0, u64::MAX) }.emit();
    let refused = |table: &[u8]| scan_of(table).unwrap_err().to_string();
    assert!(refused(&[0; 64]).contains("no SDB table at 0x10000"));
    assert!(refused(&head(0)).contains("claims 0 records"));
    assert!(refused(&head(60_000)).contains("claims 60000 records"));
    for (child, why) in [
        (0x10000, "contains itself"),
        (0xDEAD_0000, "the bus reports 8 error(s) while reading"),
        (0x10100, "no SDB table at 0x10100"),
    ] {
        let table = [head(4), device(0x100), bridge(child), device(0x200)].concat();
        let scan = scan_of(&table).unwrap();
        let found: Vec<_> = scan.devices((1, 2)).iter().map(|it| it.first).collect();
        assert_eq!(found, [Some(0x100), Some(0), Some(0x200)], "{why}");
        let [line] = &scan.unread[..] else {
            panic!("{:?}", scan.unread);
        };
        assert!(
            line.starts_with("the table behind bridge 2 was not read whole: ")
                && line.contains(why),
            "{line}"
        );
    }
    let cut = [vec![0; 0xff80], [head(4), device(0x100)].concat()].concat();
    let scan = scan_from(0x1ff80, &cut).unwrap();
    assert_eq!((scan.devices((1, 2)).len(), scan.unread.len()), (1, 1));
}

#[test]
fn a_million_queued_cycles_are_all_answered() {
    let server = serve();
    let mut client = open(&at("udp", &server));
    let (mut answered, mut failed) = (0_u64, 0_u64);
    let mut pipeline =
        client.pipeline(|done| if done.result.is_ok() { answered += 1 } else { failed += 1 });
    for token in 0..1_000_000 {
        pipeline.submit(&[read(1)], Status, token).unwrap();
    }
    pipeline.finish().unwrap();
    assert_eq!((answered, failed), (1_000_000, 0));
    assert_eq!(client.counts().completed, 1_000_000);
}

#[test]
fn cycles_too_long_for_a_datagram_are_refused_and_streams_take_them() {
    let server = serve();
    let ops: Vec<Op> = (0..6000).map(|word| read(word % 16)).collect();
    let options = ClientOptions { address: W32, data: W32, ..quick() };
    let client = |proto: &str| open_with(&at(proto, &server), &options).unwrap();
    let mut udp = client("udp");
    assert!(udp.cycle(&ops[..317], Status).is_ok());
    let error = udp.cycle(&ops[..318], Status).unwrap_err().to_string();
    assert!(error.contains("318 operations does not fit a datagram of 1472 bytes"), "{error}");
    assert_eq!(udp.cycle(&ops[..1], Status).unwrap().values.len(), 1);
    assert_eq!(client("tcp").cycle(&ops, Status).unwrap().values.len(), 6000);
}

#[test]
fn a_bus_that_takes_its_time_is_served_over_sockets() {
    let mut slave = slave();
    slave.bus.timing =
        daqmeter_etherbone::bus::BusTiming { read_ns: 500, cycle_ns: 700, ..Default::default() };
    let server = spawned(slave, ServerOptions::loopback());
    for proto in ["udp", "tcp"] {
        let mut client = open(&at(proto, &server));
        let began = std::time::Instant::now();
        converse(&mut client);
        // 500 cycles of 2 reads, one after the other on the bus.
        assert!(began.elapsed() >= Duration::from_nanos(500 * (700 + 2 * 500)));
    }
}

#[test]
fn a_server_that_dies_ends_the_cycle_and_can_be_started_again_at_once() {
    let server = serve();
    let port = server.port;
    let mut tcp = open(&format!("tcp/127.0.0.1/{port}"));
    let mut udp = open(&format!("udp/127.0.0.1/{port}"));
    load(&mut tcp, MEMORY).unwrap();
    server.stop().unwrap();
    assert!(matches!(load(&mut tcp, MEMORY), Err(EbError::Closed)));
    let error = load(&mut udp, MEMORY).unwrap_err().to_string();
    assert!(error.contains("nothing listens") || error.contains("no answer"), "{error}");
    let again =
        EbServer::bind(slave(), ServerOptions { port, ..ServerOptions::loopback() }).unwrap();
    let _again = again.spawn(None).unwrap();
    load(&mut open(&format!("tcp/127.0.0.1/{port}")), MEMORY).unwrap();
    load(&mut udp, MEMORY).unwrap();
}

#[test]
fn what_a_lossy_link_loses_is_counted_and_nothing_is_asked_again() {
    let request = LinkProfile {
        loss: 0.3,
        duplicate: 0.1,
        reorder: 0.1,
        reorder_ns: 100_000,
        ..LinkProfile::default()
    };
    let bridge = Bridge {
        request,
        reply: request,
        ..Bridge::clone(&"perfect".parse::<Resolved<Bridge>>().unwrap())
    };
    let options = ClientOptions {
        timeout: Duration::from_millis(3),
        probe_timeout: Duration::from_millis(20),
        probes: 100,
        ..ClientOptions::default()
    };
    let transport = Emulated::new(&bridge, slave());
    let mut client = Client::over(Box::new(transport), &options, "lossy").unwrap();
    let lost = (0..60).filter(|_| load(&mut client, MEMORY).is_err()).count();
    let counts = client.counts();
    assert!(lost > 10 && counts.timed_out == lost as u64, "{counts:?}");
    assert_eq!(counts.issued, counts.completed + counts.timed_out);
}

#[test]
fn nobody_home_is_said_soon() {
    let options = ClientOptions {
        probes: 2,
        probe_timeout: Duration::from_millis(10),
        ..ClientOptions::default()
    };
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let silent_port = silent.local_addr().unwrap().port();
    let closed_port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    for (address, why) in [
        (format!("udp/127.0.0.1/{silent_port}"), "no answer to 2 probes of 10ms"),
        (format!("tcp/127.0.0.1/{closed_port}"), "cannot connect to 127.0.0.1"),
        ("udp/no-such-host.invalid".to_owned(), "no-such-host.invalid"),
        ("dev/no-such-device".to_owned(), "cannot open /dev/no-such-device"),
    ] {
        let error = open_with(&address, &options).err().unwrap().to_string();
        assert!(error.contains(why), "{error}");
    }
}

#[test]
fn the_litex_dialect_over_udp_and_tcp() {
    let server = serve();
    let options = ClientOptions { dialect: EbDialect::Litex, ..quick() };
    for proto in ["udp", "tcp"] {
        let mut client = open_with(&at(proto, &server), &options).unwrap();
        let writes: Vec<Op> = (0..40).map(|word| write(word, 7 + word)).collect();
        client.cycle(&writes, Silent).unwrap();
        let reads: Vec<Op> = (0..40).map(read).collect();
        let outcome = client.cycle(&reads, Silent).unwrap();
        assert_eq!(outcome.values, (7..47).collect::<Vec<_>>());
        let error = client
            .cycle(&[Op { lanes: Lanes::of_select(1, Width::W32).unwrap(), ..read(0) }], Silent);
        assert!(error.unwrap_err().to_string().contains("whole 32-bit words"));
    }
}

#[test]
fn a_client_that_sends_half_a_cycle_is_ended_and_blocks_nobody() {
    let options =
        ServerOptions { cycle_timeout: Duration::from_millis(20), ..ServerOptions::loopback() };
    let mut server = EbServer::bind(slave(), options).unwrap();
    let (events, ended) = std::sync::mpsc::channel();
    server.set_log(move |event| drop(events.send(event)));
    let server = server.spawn(None).unwrap();
    let mut half = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    half.write_all(&[0x4e, 0x6f, 0x11, 0x44, 0, 0, 0, 1, 0xa0, 0x0f, 0, 2]).unwrap();
    load(&mut open(&at("tcp", &server)), MEMORY).unwrap();
    let mut answer = Vec::new();
    half.read_to_end(&mut answer).unwrap();
    assert_eq!(answer[..4], [0x4e, 0x6f, 0x16, 0xff]);
    let why = ended.iter().find_map(|event| match event {
        ServerEvent::Ended(_, why) => Some(why),
        ServerEvent::Access(_) => None,
    });
    assert!(why.unwrap().contains("the rest of a cycle did not come within 20ms"));
}

#[test]
fn a_silent_client_gets_a_banner_and_one_that_speaks_first_none() {
    let options =
        ServerOptions { banner_after: Some(Duration::from_millis(5)), ..ServerOptions::loopback() };
    let server = spawned(slave(), options);
    let mut silent = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    let mut banner = [0; 64];
    let bytes = silent.read(&mut banner).unwrap();
    assert!(String::from_utf8_lossy(&banner[..bytes]).starts_with("daqmeter:"));
    converse(&mut open(&at("tcp", &server)));
}

#[test]
fn answers_can_go_to_a_fixed_port() {
    let fixed = UdpSocket::bind("127.0.0.1:0").unwrap();
    let reply_port = Some(fixed.local_addr().unwrap().port());
    let server =
        EbServer::bind(slave(), ServerOptions { reply_port, ..ServerOptions::loopback() }).unwrap();
    let server = server.spawn(None).unwrap();
    let asking = UdpSocket::bind("127.0.0.1:0").unwrap();
    asking.send_to(&[0x4e, 0x6f, 0x11, 0x44, 0, 0, 0, 9], ("127.0.0.1", server.port)).unwrap();
    let mut answer = [0; 16];
    assert_eq!(fixed.recv(&mut answer).unwrap(), 8);
    assert_eq!(answer[..8], [0x4e, 0x6f, 0x16, 0xff, 0, 0, 0, 9]);
}
