//! The Etherbone tools for scripts: output, exit codes, one clear line for errors.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::common::{self, Folder, Running, ends_with, fail_with};
use daqmeter_etherbone::access::{ByteSpan, Words};
use daqmeter_etherbone::address::parse_widths;
use daqmeter_etherbone::bus::Description;
use daqmeter_etherbone::{Address, Client, ClientOptions, EbServer, ServerOptions, Slave, scan};
use daqmeter_wire::etherbone::Endian;

fn done(arguments: &str) -> String {
    common::done(&format!("eb {arguments}"))
}

pub(crate) struct Snoop {
    running: Running,
    pub(crate) port: u16,
}

impl Snoop {
    pub(crate) fn start(more: &str) -> Snoop {
        let running = Running::start(&format!("eb snoop --bind 127.0.0.1 0 {more}"));
        let said = running.said("port ");
        let (_, port) = said.split_once("port ").unwrap();
        let port = port.split([' ', ';']).next().unwrap().parse().unwrap();
        Snoop { running, port }
    }

    pub(crate) fn at(&self, proto: &str) -> String {
        format!("{proto}/127.0.0.1/{}", self.port)
    }
}

#[test]
fn registers_are_read_and_written_as_by_the_c_tools() {
    let snoop = Snoop::start("0x10000-0x1ffff");
    for proto in ["udp", "tcp"] {
        for (line, printed) in [
            ("write SLAVE 0x10000/4 0x11223344", ""),
            ("read SLAVE 0x10000/4", "11223344\n"),
            ("read SLAVE 0x10001/1", "22\n"),
            ("read -p -l -d 32 SLAVE 0x10000/2", "3344\n"),
            ("read -d 16 -q SLAVE 0x10000/4", "11223344\n"),
            ("read -s SLAVE 0x10000/8", "1122334400000000\n"),
            ("read -c SLAVE 0xc/4", "00000000\n"),
        ] {
            assert_eq!(done(&line.replace("SLAVE", &snoop.at(proto))), printed, "{line}");
        }
    }
}

#[test]
fn a_register_is_polled_until_it_has_a_value_over_one_connection() {
    let snoop = Snoop::start("0x10000-0x1ffff");
    let slave = snoop.at("udp");
    let line = format!("eb read -d 32 {slave} 0x10004/4 --every 1ms --until 0x20/0xf0 --json");
    let mut poll = Running::start(&line);
    let first: serde_json::Value = serde_json::from_str(&poll.printed()).unwrap();
    assert_eq!((&first["value"], &first["missed"]), (&"0x0".into(), &0.into()));
    done(&format!("write -d 32 {slave} 0x10004/4 0x123"));
    let (code, rows) = poll.end();
    assert_eq!(code, Some(0));
    assert!(rows.lines().last().unwrap().contains("\"value\":\"0x123\""), "{rows}");
}

/// Returns a capture (pcap, raw IP) of datagrams between 10.0.0.1:1 and 10.0.0.2:2: microseconds,
/// whether it is an answer, and the payload in hexadecimal digits.
fn captured(datagrams: &[(u32, bool, &str)]) -> Vec<u8> {
    let head = [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65535, 101];
    let mut file: Vec<u8> = head.iter().flat_map(|word| word.to_le_bytes()).collect();
    for (us, is_answer, payload) in datagrams {
        let digits: Vec<u8> = payload.bytes().filter(|byte| *byte != b' ').collect();
        let byte =
            |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
        let payload: Vec<u8> = digits.chunks(2).map(byte).collect();
        let (from, to) = if *is_answer { (2, 1) } else { (1, 2) };
        let length = u8::try_from(payload.len()).unwrap();
        let mut packet = vec![0x45, 0, 0, length + 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, from];
        packet.extend([10, 0, 0, to, 0, from, 0, to, 0, length + 8, 0, 0]);
        packet.extend(payload);
        let bytes = u32::try_from(packet.len()).unwrap();
        file.extend([7, *us, bytes, bytes].iter().flat_map(|word: &u32| word.to_le_bytes()));
        file.extend(packet);
    }
    file
}

#[test]
fn a_capture_is_shown_by_operation_with_the_round_trip_of_each_cycle() {
    let folder = Folder::new();
    let file = captured(&[
        (1, false, "4e6f1044 e80f0101 00010000 11223344 00008001 00000004"),
        (90, true, "4e6f1444 0e0f0100 00008001 00000000"),
        (100, false, "4e6f1044 a00f0001 00008002 000a0000 e80f0001 00008003 00000004"),
        (130, true, "4e6f1444 060f0100 00008002 00000000 0e0f0100 00008003 00000001"),
        (200, false, "4e6f1044 00000000 000f0001 00000005 f0000000"),
        (200, false, "4e6f1444 a80f0100 00010000 00000001"),
        (203, true, "4e6f1044 00000000 000f0100 00000005 cafecafe"),
        (300, false, "4e6f1044 a80f0001 00008004 00010000"),
        (301, true, "00"),
    ]);
    folder.write("whole.pcap", &file);
    folder.write("cut.pcap", &file[..file.len() - 1]);
    let (shown, said) = folder.ends_with(0, "eb decode whole.pcap");
    insta::assert_snapshot!(shown.clone() + &said);
    let (cut, said) = folder.ends_with(0, "eb decode cut.pcap");
    assert!(cut == shown && said.contains("cut.pcap ends inside a packet"), "{said}");
    let lines = folder.done("eb decode whole.pcap --json");
    let rows: Vec<serde_json::Value> =
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let trips: Vec<_> = rows.iter().map(|row| row["round_trip_us"].clone()).collect();
    assert_eq!(
        serde_json::json!(trips),
        serde_json::json!([89.0, 30.0, "unasked", 3.0, "no answer"])
    );
}

/// Wireshark's dumpcap captured reads and writes on all interfaces (cooked) and on one (Ethernet);
/// its mergecap made one pcapng of both. Scapy wrote the one with tags of a virtual LAN.
#[test]
fn a_pcapng_of_wireshark_shows_what_its_captures_show() {
    let folder = Folder::new();
    let file = |name: &str| std::fs::read(format!("tests/data/{name}")).unwrap();
    for name in ["both.pcapng", "any.pcap", "lo.pcap", "vlan.pcapng"] {
        folder.write(name, file(name));
    }
    folder.write("twice.pcapng", file("both.pcapng").repeat(2));
    let [any, lo, both, twice] = ["any.pcap", "lo.pcap", "both.pcapng", "twice.pcapng"]
        .map(|name| folder.done(&format!("eb decode {name}")));
    assert_eq!([any.lines().count(), lo.lines().count()], [3, 3]);
    assert_eq!(both, any + &lo);
    assert_eq!(twice, both.repeat(2));
    let read = "1.500000000  10.0.0.1:4711  10.0.0.2:60368  89.000  read  0x10000/4  00000007\n";
    assert_eq!(folder.done("eb decode vlan.pcapng"), read);
}

/// Memory of a device, as the C library's eb-snoop serves it.
struct Memory {
    address: String,
    client: Client,
    words: Words,
    _server: daqmeter_etherbone::server::Running,
}

impl Memory {
    /// Serves a memory of that order and those widths: `b 8/32`.
    fn of(device: &str) -> Memory {
        let (order, widths) = device.split_once(' ').unwrap();
        let endian = if order == "b" { Endian::Big } else { Endian::Little };
        let memory = Description::memory(0x10000, 0x1ffff, parse_widths(widths).unwrap(), endian);
        let slave = Slave::new(memory.build().unwrap());
        let server = EbServer::bind(slave, ServerOptions::loopback()).unwrap().spawn(None).unwrap();
        let address = format!("udp4/127.0.0.1/{}", server.port);
        let parsed = Address::parse(&address).unwrap();
        let mut client = Client::open(&parsed, &ClientOptions::default()).unwrap();
        let reach = scan::reach_of(&mut client, 0x10000).unwrap();
        let words = Words::of(&client, reach, ByteSpan::range(0x10000, 16)).unwrap();
        Memory { address, client, words, _server: server }
    }

    /// Does one call and returns what it says, as the table does.
    fn call(&mut self, options: &str, call: &str, folder: &Folder) -> String {
        let before: Vec<u8> = (0..16).map(|at: u8| at.wrapping_mul(0x11).wrapping_add(1)).collect();
        self.words.write(&mut self.client, &before).unwrap();
        let (verb, rest) = call.split_once(' ').unwrap();
        let (span, value) = rest.split_once(' ').unwrap_or((rest, ""));
        let (at, bytes) = span.split_once('/').unwrap();
        let put: Vec<u8> = (0xa1..).take(bytes.parse().unwrap()).collect();
        folder.write("put", put);
        let slave = &self.address;
        let line = match verb {
            "get" => format!("eb read {options} {slave} {span} -o got"),
            "put" => format!("eb write {options} {slave} {at} --from put"),
            verb => format!("eb {verb} {options} {slave} {span} {value}"),
        };
        let output = folder.command(&line).output().unwrap();
        let said = common::stderr(&output);
        let after = self.words.read(&mut self.client).unwrap();
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        if !output.status.success() {
            assert_eq!(after, before, "{line}: an access that was refused");
            return "1 ".to_owned() + &said;
        }
        let warned = if said.contains("warning: the") { "w" } else { "-" };
        let result = match verb {
            "get" => hex(&std::fs::read(folder.path("got")).unwrap()),
            "read" => common::stdout(&output).trim().to_owned(),
            _ => hex(&after),
        };
        format!("0 {warned} {result}")
    }
}

#[test]
fn a_few_hundred_calls_end_as_those_of_the_c_tools() {
    let why = BTreeMap::from([
        ("aligned", "is not aligned to"),
        ("order", "the byte order must be given (-b or -l)"),
        ("width", "bits only, the port has"),
        ("exact", "(-f forbids it)"),
        ("fits", "does not fit"),
    ]);
    let folder = Folder::new();
    let mut memory = (String::new(), None);
    let mut wrong = Vec::new();
    let table = include_str!("eb/c-tools.txt");
    for row in table.lines().filter(|row| !row.starts_with('#')) {
        let [device, options, call, wanted] = row.split(" | ").collect::<Vec<_>>()[..] else {
            panic!("{row}")
        };
        if memory.0 != device {
            memory = (device.to_owned(), Some(Memory::of(device)));
        }
        let found = memory.1.as_mut().unwrap().call(options, call, &folder);
        let agrees = match wanted.rsplit_once(' ').unwrap() {
            ("0 w" | "0 -", _) => found == wanted,
            // The byte order is asked for before -f is looked at.
            (_, "exact") if found.contains(why["order"]) => true,
            (_, reason) => found.starts_with("1 ") && found.contains(why[reason]),
        };
        wrong.extend((!agrees).then(|| format!("{row}: {found}")));
    }
    assert!(wrong.is_empty(), "{} differ: {wrong:#?}", wrong.len());
}

#[test]
fn the_bus_is_listed_as_eb_ls_lists_it() {
    insta::assert_snapshot!(done("ls emu/perfect"));
    insta::assert_snapshot!(done("ls -n -v emu/perfect"));
    assert_eq!(done("ls emu/perfect --find 0x651:0xb2afc251"), "0x101000\n");
}

fn broken_bridge(snoop: &Snoop) -> String {
    let ours = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let to_slave = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    to_slave.connect(("127.0.0.1", snoop.port)).unwrap();
    let port = ours.local_addr().unwrap().port();
    std::thread::spawn(move || {
        // These are the first and the last address, which follow that of the table.
        let range = [0x0010_0000_u64, 0x001f_ffff].map(u64::to_be_bytes).concat();
        let mut buffer = [0; 2048];
        while let Ok((bytes, client)) = ours.recv_from(&mut buffer) {
            to_slave.send(&buffer[..bytes]).unwrap();
            let bytes = to_slave.recv(&mut buffer).unwrap();
            let found = buffer[..bytes].windows(16).position(|part| part == range);
            if let Some(at) = found {
                buffer[at - 8..at].copy_from_slice(&0xdead_0000_u64.to_be_bytes());
            }
            ours.send_to(&buffer[..bytes], client).unwrap();
        }
    });
    format!("udp/127.0.0.1/{port}")
}

#[test]
fn a_broken_bridge_does_not_hide_what_is_beside_it() {
    let snoop = Snoop::start("--bus timing-receiver");
    let slave = broken_bridge(&snoop);
    let why = "behind bridge 4 was not read whole: ";
    let (rows, said) = ends_with(1, &format!("eb ls {slave}"));
    assert!(rows.contains("WB4-BlockRAM") && rows.contains("WB4-Bridge-Timing"), "{rows}");
    assert!(said.contains(why), "{said}");
    let (found, said) = ends_with(0, &format!("eb ls {slave} --find 0x651:0x66cfeb52"));
    assert_eq!(found, "0x10000\n");
    assert!(said.contains(why), "{said}");
}

#[test]
fn files_go_to_memory_and_back() {
    let snoop = Snoop::start("0x10000-0x1ffff");
    let folder = snoop.running.folder.path();
    let (sent, back) = (folder.join("sent"), folder.join("back"));
    let data: Vec<u8> = (0..=255).cycle().take(10_007).collect();
    std::fs::write(&sent, &data).unwrap();
    for proto in ["udp", "tcp"] {
        let slave = snoop.at(proto);
        done(&format!("write {slave} 0x10001 --from {}", sent.display()));
        done(&format!("read {slave} 0x10001/10007 -o {}", back.display()));
        assert!(std::fs::read(&back).unwrap() == data, "{proto}");
        std::fs::remove_file(&back).unwrap();
    }
    let piped = common::run(&format!("eb read {} 0x10001/10007 -o -", snoop.at("udp")));
    assert!(piped.stdout == data, "{}", common::stderr(&piped));
    let past = format!("eb read {} 0x1fff0/32 -o {}", snoop.at("udp"), back.display());
    fail_with(1, &[(&past, "the first at 0x20000")]);
    assert!(!back.exists());
}

/// Regression: datagrams of a file were lost, and the write was said to be done.
#[test]
fn writes_without_an_answer_are_read_back_or_warned_of() {
    let snoop = Snoop::start("--bus timing-receiver");
    let (slave, folder) = (snoop.at("udp"), Folder::new());
    folder.write("sent", b"abcdefgh");
    let sent = folder.path("sent").display().to_string();
    // The ECA's registers take no writes, and LiteX has no answer that says so.
    let lost = format!("eb write --litex -b {slave} 0x101018 --from {sent}");
    fail_with(1, &[(&lost, "of 8 bytes are not as written, the first at 0x1010")]);
    let warning = "daqmeter: warning: nothing answers this write: --verify reads it back\n";
    for (line, told) in [
        ("--litex -b SLAVE 0x10000 --from SENT", ""),
        ("-s SLAVE 0x10000 --from SENT --verify", ""),
        ("-s SLAVE 0x10000 --from SENT", warning),
        ("--litex SLAVE 0x10000/4 5", warning),
        ("--litex SLAVE 0x10000/4 5 --verify", ""),
        ("SLAVE 0x10000/4 5", ""),
    ] {
        let line = line.replace("SLAVE", &slave).replace("SENT", &sent);
        assert_eq!(ends_with(0, &format!("eb write {line}")).1, told, "{line}");
    }
}

#[test]
fn the_wrong_byte_order_is_warned_of() {
    let snoop = Snoop::start("-l 0x10000-0x1ffff");
    let said =
        |more: &str| ends_with(0, &format!("eb read {} 0x10000/4 {more}", snoop.at("udp"))).1;
    let warning = "daqmeter: warning: the device is little-endian, it is accessed as big-endian\n";
    assert_eq!(said("-b"), warning);
    assert_eq!((said("-l"), said("-b -q")), (String::new(), String::new()));
    assert!(said("-v").starts_with("Connected to udp/127.0.0.1/"));
}

#[test]
fn a_measurement_negotiates_widths_as_the_tools_do() {
    // Words of 32 bits at 32-bit addresses of a slave with only 64-bit addresses cannot be
    // measured.
    let wide = Snoop::start("-a 64 --bus timing-receiver");
    let perf = |slave: String| format!("eb perf {slave} -m 1 -n 2 -l 1");
    fail_with(2, &[(&perf(wide.at("udp")), "no width in common")]);
    let any = Snoop::start("--bus timing-receiver");
    for proto in ["udp", "tcp"] {
        common::done(&perf(any.at(proto)));
    }
}

#[test]
fn every_access_is_logged_when_asked() {
    let snoop = Snoop::start("-v 0x10000-0x1ffff");
    done(&format!("write -p -d 32 {} 0x10004/4 0xcafe", snoop.at("udp")));
    assert_eq!(snoop.running.printed(), "Write 0x00010004/4: 0000cafe ok");
}

#[test]
fn a_slave_is_discovered() {
    let snoop = Snoop::start("0x0-0xff");
    let found = done(&format!("discover --quiet 50ms {}", snoop.at("udp")));
    let name = format!("udp4/127.0.0.1/{}", snoop.port);
    assert_eq!(found, format!("{name:<33} V.1; data=8/16/32/64-bit addr=8/16/32/64-bit\n"));
}

/// Regression: 493 threads of a tunnel waited for the reader of its errors.
#[test]
fn a_tunnel_serves_while_its_errors_are_not_read() {
    let mut tunnel = common::command("eb tunnel 0").stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let mut errors = BufReader::new(tunnel.stderr.take().unwrap());
    errors.read_line(&mut line).unwrap();
    let port: u16 = line.split_once("port ").unwrap().1.split(';').next().unwrap().parse().unwrap();
    // A target without a host is refused, with a line that is longer than 100 bytes.
    let refused = || {
        let mut client = TcpStream::connect(("127.0.0.1", port)).unwrap();
        client.write_all(b"/\0").unwrap();
        let _ = client.read_to_end(&mut Vec::new());
    };
    (0..1500).for_each(|_| refused());
    let status = format!("/proc/{}/status", tunnel.id());
    let threads = || {
        let status = std::fs::read_to_string(&status).unwrap();
        let count = status.lines().find_map(|line| line.strip_prefix("Threads:")).unwrap();
        count.trim().parse::<u32>().unwrap()
    };
    let begin = Instant::now();
    while threads() > 10 {
        assert!(begin.elapsed() < Duration::from_secs(10), "{} threads", threads());
        refused();
    }
    tunnel.kill().unwrap();
    tunnel.wait().unwrap();
}

#[test]
fn perf_measures_and_its_record_can_be_shown() {
    let folder = Folder::new();
    let text = folder.done("eb perf -m 1,2 -n 10 -l 2 --records r.jsonl -o p.html --all");
    assert!(text.starts_with("loop/udp: a timestamp takes "), "{text}");
    assert_eq!(text.matches("\n loop/udp").count(), 6 + 2, "{text}");
    let html = folder.read("p.html");
    for figure in ["eb-time", "eb-rate", "eb-throughput", "eb-words"] {
        assert!(html.contains(figure), "{figure}");
    }
    assert!(folder.done("report r.jsonl --format text").contains("pipelined"));
    let compared = folder.done("reproduce etherbone --from r.jsonl --all");
    assert!(compared.contains("TLU cycle: 3 reads, 1 write"));
}

#[test]
fn called_by_the_name_of_a_c_tool_the_program_is_that_tool() {
    let folder = Folder::new();
    let call = |line: &str| {
        let mut words = line.split(' ');
        let name = folder.path(words.next().unwrap());
        if !name.exists() {
            std::os::unix::fs::symlink(common::PROGRAM, &name).unwrap();
        }
        let mut command = std::process::Command::new(&name);
        let output = command.args(words).current_dir(folder.path("")).output().unwrap();
        (output.status.code().unwrap(), common::stdout(&output), common::stderr(&output))
    };
    let snoop = Snoop::start("--bus timing-receiver");
    let slave = snoop.at("udp");
    folder.write("four", [1, 2, 3, 4]);
    for (line, printed) in [
        ("eb-find SLAVE 0x651 0xb2afc251", "0x101000\n"),
        ("eb-find -vn 0 SLAVE 0x651 0xb2afc251", "0x101000\n"),
        ("eb-put -c 8 SLAVE 0x10000 four", ""),
        ("eb-read SLAVE 0x10000/4", "01020304\n"),
        ("eb-write SLAVE 0x10004/4 0x05060708", ""),
        ("eb-get -c8 SLAVE 0x10000/8 eight", ""),
    ] {
        let (code, out, said) = call(&line.replace("SLAVE", &slave));
        assert_eq!((code, &*out), (0, printed), "{line}: {said}");
    }
    assert_eq!(std::fs::read(folder.path("eight")).unwrap(), [1, 2, 3, 4, 5, 6, 7, 8]);
    let (_, listed, _) = call(&format!("eb-ls {slave}"));
    assert_eq!(listed, done(&format!("ls {slave}")));
    for (line, wanted) in [
        ("eb-read SLAVE 0x70000000/4", "eb-read: "),
        ("eb-find -n 1 SLAVE 0x651 0xb2afc251", "eb-find: the last index of device 0x651:"),
        ("eb-find SLAVE 0x651", "Usage: eb-find [-vqh] [-a WIDTHS]"),
        ("eb-read -h", "Usage: eb-read "),
        ("eb-ls -x SLAVE", "eb-ls: unexpected argument '-x' found\nUsage: eb-ls "),
        ("eb-ls udp", "eb-ls: invalid value 'udp'"),
    ] {
        let (code, out, said) = call(&line.replace("SLAVE", &slave));
        assert_eq!((code, &*out), (1, ""), "{line}");
        assert!(said.starts_with(wanted), "{line}: {said}");
    }
}

/// The bus of the emulated bridge gives each word its time, and the line each packet: what is
/// predicted from 15 words is measured at 255.
#[test]
fn the_rate_of_long_packets_of_litex_is_known_from_short_ones() {
    let rate = |text: &str, before: &str, after: &str| -> f64 {
        let line = text.lines().next().unwrap();
        let from = line.split(before).nth(1).unwrap_or_else(|| panic!("{before}: {text}"));
        from.split(after).next().unwrap().trim().parse().unwrap()
    };
    // A host whose CPUs change their speed between both needs another try.
    let mut found = Vec::new();
    while !found.last().is_some_and(|ratio| (0.5..2.0).contains(ratio)) {
        assert!(found.len() < 4, "{found:?}");
        let short = done("perf emu/gige --litex -l 3");
        let predicted = rate(&short, "packets of 255 words would give ", " (a packet takes");
        let long = done("perf emu/gige --litex -l 3 -m 1,255");
        assert!(!long.contains("would give"), "{long}");
        found.push(predicted / rate(&long, " us: ", " MB/s (a packet"));
    }
    let (_, refused) = ends_with(2, "eb perf --litex --method pipelined");
    assert!(refused.contains("use it with payload memory and method blocking"), "{refused}");
}
