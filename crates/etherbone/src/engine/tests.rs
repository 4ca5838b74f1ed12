use daqmeter_harness::{Context, Settings, StepPlan, measure};
use daqmeter_record::{Outcome, RunRecord};

use daqmeter_harness::{Fault, Request};
use daqmeter_record::Param;
use daqmeter_wire::etherbone::{Width, Widths};

use std::io::Read;
use std::net::{Shutdown, TcpListener, TcpStream};

use super::*;
use crate::bus::Description;
use crate::server::Running;
use crate::{EbServer, ServerOptions, Slave};

fn example() -> EtherboneRequest {
    EtherboneRequest::example()
}

#[test]
fn etherbone_conforms() {
    daqmeter_harness::conformance::run(&example().job().unwrap());
}

fn measured(request: &EtherboneRequest, plan: StepPlan) -> RunRecord {
    let (settings, context) = (Settings::new(plan, "test"), Context::default());
    measure(&request.job().unwrap(), &settings, &context, &[], &mut []).unwrap()
}

fn run(request: &EtherboneRequest, plan: StepPlan) -> RunRecord {
    let record = measured(request, plan);
    assert_eq!(record.outcome, Outcome::Ok, "{request:?}");
    record
}

#[test]
fn every_method_and_payload_over_every_way() {
    for address in ["loop/udp", "loop/tcp", "emu/perfect", "emu/gige", "emu/scu-pcie-2018"] {
        for method in Method::ALL {
            for payload in [Payload::Timestamps, Payload::Tlu, Payload::Memory] {
                let request = EtherboneRequest {
                    address: address.parse().unwrap(),
                    method,
                    payload,
                    count: 8,
                    cycles: 10,
                    ..example()
                };
                let record = run(&request, StepPlan::ByStage(20));
                assert_eq!((record.ledgers[0].issued, record.ledgers[0].delivered), (20, 20));
                let samples = if method == Method::Pipelined { 2 } else { 20 };
                assert_eq!(record.lanes[0].stages[0].sample_ns.len(), samples);
                let has_windows = record.counter("eca-window-realistic").is_some();
                let warnings = &record.warnings;
                assert_eq!(has_windows, payload == Payload::Timestamps, "{address} {warnings:?}");
            }
        }
    }
}

/// Regression: one lost cycle of 990 made 106 us per cycle 5153, by its deadline of 5 s.
#[test]
fn a_deadline_is_in_no_time_and_no_window() {
    let file = tempfile::NamedTempFile::with_suffix(".toml").unwrap();
    let link = "{ latency_ns = 50000, loss = 0.01 }";
    std::fs::write(
        file.path(),
        format!("about = \"\"\nrequest = {link}\nreply = {{ duplicate = 0.3 }}\n"),
    )
    .unwrap();
    let address: SlaveAddress = format!("emu/{}", file.path().display()).parse().unwrap();
    for (method, plan, cycles_per_sample) in [
        (Method::Blocking, StepPlan::ByStage(300), 1),
        (Method::Blocking, StepPlan::ByPass(300), 1),
        (Method::Convenience, StepPlan::ByStage(100), 1),
        (Method::Pipelined, StepPlan::ByStage(8_000), 100),
    ] {
        // Above the delays of a busy host.
        let (address, timeout_ms) = (address.clone(), Some(200));
        let request = EtherboneRequest {
            address,
            method,
            timeout_ms,
            cycles: cycles_per_sample,
            ..example()
        };
        let record = run(&request, plan);
        let (ledger, stage) = (&record.ledgers[0], &record.lanes[0].stages[0]);
        let lost = ledger.losses["timeout"];
        let kept = stage.sample_ns.len() as u64 * cycles_per_sample;
        assert!(ledger.closes() && lost > 0 && kept > 0 && kept <= ledger.delivered, "{ledger}");
        assert!(cycles_per_sample > 1 || kept == ledger.delivered, "{ledger}");
        assert!(record.counter("stray-answers").unwrap() > 0.0);
        let warning = format!("{lost} of {} cycles had no answer within 200ms", ledger.issued);
        assert!(record.warnings.iter().any(|line| line.starts_with(&warning)), "{record:?}");
        let host_ns = stage.sample_ns.iter().sum::<u64>() as f64;
        let (most_ns, window_ns) = (
            *stage.sample_ns.iter().max().unwrap(),
            record.counter("eca-window-realistic").unwrap(),
        );
        assert!(most_ns < 200_000_000, "{method:?}: {most_ns}");
        assert!(window_ns < host_ns + 200e6 && window_ns > 0.5 * host_ns, "{window_ns} {host_ns}");
    }
}

/// Regression: three deadlines in a row were taken for a dead slave, whatever the link loses.
#[test]
fn a_link_that_loses_a_tenth_each_way_is_measured_and_cycles_are_repeated_only_on_request() {
    let file = tempfile::NamedTempFile::with_suffix(".toml").unwrap();
    let link = "{ loss = 0.1, duplicate = 0.1, reorder = 0.1, reorder_ns = 100000 }";
    let text = format!("about = \"\"\nrequest = {link}\nreply = {link}\n");
    std::fs::write(file.path(), text).unwrap();
    let address: SlaveAddress = format!("emu/{}", file.path().display()).parse().unwrap();
    for (method, cycles, operations, lost_share) in [
        (Method::Blocking, 1, 150, 0.19),
        // Four round trips.
        (Method::Convenience, 1, 60, 0.57),
        // Many cycles are lost with a datagram.
        (Method::Pipelined, 100, 4_000, 0.19),
    ] {
        let request = EtherboneRequest {
            address: address.clone(),
            method,
            timeout_ms: Some(10),
            cycles,
            ..example()
        };
        let record = run(&request, StepPlan::ByStage(operations));
        let (ledger, stage) = (&record.ledgers[0], &record.lanes[0].stages[0]);
        let share = ledger.losses["timeout"] as f64 / ledger.issued as f64;
        let events = operations as f64 / record.counter("cycles-per-datagram").unwrap();
        let sigma = (lost_share * (1.0 - lost_share) / events).sqrt();
        assert!((share - lost_share).abs() < 4.0 * sigma, "{method:?}: {share}");
        assert!(ledger.closes() && ledger.issued == operations && !stage.sample_ns.is_empty());
        let repeated = EtherboneRequest { retries: 50, ..request.clone() };
        let record = run(&repeated, StepPlan::ByStage(operations / 2));
        let (ledger, stage) = (&record.ledgers[0], &record.lanes[0].stages[0]);
        assert_eq!((ledger.issued, ledger.lost()), (operations / 2, 0), "{method:?}");
        assert_eq!(stage.sample_ns.len() as u64 * cycles, operations / 2);
        assert!(record.counter("repeated-cycles").unwrap() > 0.0);
        let latch = EtherboneRequest { payload: Payload::Tlu, pop_channel: Some(0), ..repeated };
        assert!(latch.check().unwrap_err().text.contains("drop stamps twice"));
    }
}

#[test]
fn the_gap_within_a_cycle_is_that_of_the_bridge() {
    for (address, wanted_ns) in [("emu/gige", 64.0), ("emu/scu-pcie-2018", 5970.0)] {
        let request = EtherboneRequest {
            address: address.parse().unwrap(),
            count: 8,
            cycles: 20,
            ..example()
        };
        let record = run(&request, StepPlan::ByStage(20));
        let gap_ns = record.counter("eca-in-cycle-gap").unwrap();
        // Timestamps are whole ticks of 8 ns; seven gaps are divided by seven.
        assert!((gap_ns - wanted_ns).abs() < 2.0, "{address}: {gap_ns}");
        let realistic = record.counter("eca-window-realistic").unwrap();
        let underestimated = record.counter("eca-window-underestimated").unwrap();
        assert!(
            realistic > underestimated && underestimated > 7.0 * wanted_ns,
            "{realistic} {underestimated}"
        );
    }
}

fn opened(params: &[(&str, Param)]) -> Result<(), Fault> {
    let with = |workload: daqmeter_record::Workload, (name, value): &(&str, Param)| {
        workload.with(name, value.clone())
    };
    let workload = params.iter().fold(example().workload(), with);
    EtherboneRequest::of(&workload)?.job()?.open().map(drop)
}

#[test]
fn wrong_requests_are_named() {
    for (name, value, wanted) in [
        ("address", "nowhere".into(), "no protocol"),
        ("address", "emu/warp".into(), "bridge warp: "),
        ("method", "magic".into(), "expected one of `convenience`, `blocking`, `pipelined`"),
        ("payload", "gold".into(), "expected one of `timestamps`, `tlu`, `memory`"),
        ("count", "many".into(), "expected u64"),
        ("count", Param::Int(0), "`count` is 0; 1 to 100000"),
        ("cycles", Param::Int(0), "`cycles` is 0; 1 to 1048576"),
        ("base", Param::Int(1 << 53), "`base` is 9007199254740992; 0 to"),
        ("pop_channel", Param::Int(32), "`pop_channel` is for"),
        ("timeout_ms", Param::Int(0), "`timeout_ms` is 0; 1 to"),
        ("peer_cpu", Param::Int(99_999), "no such CPU"),
    ] {
        let error = opened(&[(name, value)]).unwrap_err().0;
        assert!(error.contains(wanted), "{name}: {error}");
    }
}

/// Serves a bus from TOML, and returns its address.
fn serves(bus: &str) -> (SlaveAddress, Running) {
    let bus = daqmeter_harness::TomlText::new("bus", bus);
    let server = served(&Description::parse(&bus).unwrap());
    (format!("udp/127.0.0.1/{}", server.port).parse().unwrap(), server)
}

fn served(bus: &Description) -> Running {
    let slave = Slave::new(bus.build().unwrap());
    EbServer::bind(slave, ServerOptions::loopback()).unwrap().spawn(None).unwrap()
}

#[test]
fn memory_above_4_gib_is_read_and_one_of_several_devices_is_chosen() {
    let device = |kind: &str, first: u64| {
        format!("[[device]]\nkind = \"{kind}\"\nfirst = {first}\nlast = {}\n", first + 0xffff)
    };
    let bus = [("memory", 5 << 32), ("eca", 0x10000), ("eca", 0x20000)];
    let (address, _server) = serves(&bus.map(|(kind, first)| device(kind, first)).concat());
    let example = EtherboneRequest { address, ..example() };
    let at = |payload, base| EtherboneRequest { payload, base, ..example.clone() };
    for request in [at(Payload::Memory, Some(5 << 32)), at(Payload::Timestamps, Some(0x20000))] {
        run(&request, StepPlan::ByStage(6));
    }
    for (base, why) in [
        (None, "has 2 devices ECA (0x651:0xb2afc251): choose one by --base"),
        (Some(0x30000), "has no ECA (0x651:0xb2afc251)"),
    ] {
        let record = measured(&at(Payload::Timestamps, base), StepPlan::ByStage(6));
        assert!(record.outcome.reason().unwrap().contains(why), "{record:?}");
    }
}

/// Regression: the windows of a receiver whose clock stands were 0, without a word.
#[test]
fn a_clock_that_stands_gives_no_windows() {
    let words = [0x18, 0x1c].map(|offset| {
        format!("[[device.register]]\noffset = {offset}\nvalue = 7\naccess = \"read-only\"\n")
    });
    let eca = "[[device]]\nkind = \"registers\"\nfirst = 0x10000\nlast = 0x1007f\nvendor = 0x651\ndevice_id = 0xb2afc251\n";
    let (address, _server) = serves(&(eca.to_owned() + &words.concat()));
    let times = Times::open(&Times::request(&address, 2)).unwrap().read(&mut [0; 32]);
    let stands = "the slave's clock is wrong: it stands at 30064771079 ns";
    assert_eq!(times.unwrap_err().0, stands);
    let record = run(&EtherboneRequest { address, ..example() }, StepPlan::ByStage(6));
    assert_eq!(record.counter("eca-window-realistic"), None);
    let warning = "the slave's clock gives no windows: it went from 30064771079 to 30064771079 ns";
    assert!(record.warnings.iter().any(|line| line.starts_with(warning)), "{record:?}");
}

/// Regression: an interrupt waited for the deadlines of a slave that is slow or silent.
#[test]
fn every_wait_ends_when_the_run_is_stopped() {
    let silent = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = format!("udp/{}", silent.local_addr().unwrap()).replace(':', "/");
    let address = address.parse().unwrap();
    let (request, begin) = (EtherboneRequest { address, ..example() }, std::time::Instant::now());
    let settings = Settings::new(StepPlan::ByStage(1), "test");
    settings.stop.set();
    let record = measure(&request.job().unwrap(), &settings, &Context::default(), &[], &mut []);
    let record = record.unwrap();
    assert!(record.outcome.reason().unwrap().contains("interrupted"), "{record:?}");
    assert!(begin.elapsed() < std::time::Duration::from_secs(2));
}

#[test]
fn a_cycle_must_fit_a_datagram_but_not_on_streams() {
    let long = |address: &str, count: u64| {
        opened(&[("address", address.into()), ("count", Param::Int(count))])
    };
    assert!(long("loop/udp", 158).is_ok() && long("loop/tcp", 159).is_ok());
    let error = long("loop/udp", 159).unwrap_err().0;
    assert!(error.contains("does not fit a datagram of 1472 bytes"), "{error}");
    assert!(long("udp/127.0.0.1/9", 1).is_ok());
}

#[test]
fn slaves_that_are_not_ours_are_only_written_to_where_somebody_says_so() {
    let elsewhere = |params: &[(&str, Param)]| {
        let address = ("address", "udp/127.0.0.1/9".into());
        opened(&[&[address], params].concat())
    };
    let refused = |params: &[(&str, Param)]| elsewhere(params).unwrap_err().0;
    let tlu = ("payload", Param::from("tlu"));
    let channel = ("pop_channel", Param::Int(3));
    assert!(refused(std::slice::from_ref(&tlu)).contains("`pop_channel` is missing"));
    assert!(elsewhere(&[tlu, channel.clone()]).is_ok());
    assert!(refused(&[channel]).contains("`pop_channel` is for the payload tlu"));
    assert!(refused(&[("payload", "memory".into())]).contains("`base` is missing"));
}

/// Starts a slave behind a connection that breaks, or goes silent, after this number of bytes of
/// answers.
fn ends_after(bytes: usize, breaks: bool) -> (SlaveAddress, Running) {
    let server = served(&Description::timing_receiver());
    let proxy = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("tcp/{}", proxy.local_addr().unwrap()).replace(':', "/");
    let address = address.parse().unwrap();
    let port = server.port;
    std::thread::spawn(move || {
        while let Ok((client, _)) = proxy.accept() {
            let slave = TcpStream::connect(("127.0.0.1", port)).unwrap();
            std::thread::spawn(move || forward(&client, &slave, bytes, breaks));
        }
    });
    (address, server)
}

fn forward(mut client: &TcpStream, mut slave: &TcpStream, bytes: usize, breaks: bool) {
    std::thread::scope(|threads| {
        threads.spawn(|| std::io::copy(&mut &*client, &mut &*slave));
        // Either end may have closed the connection before.
        let _ = std::io::copy(&mut Read::by_ref(&mut slave).take(bytes as u64), &mut client);
        if breaks {
            let _ = client.shutdown(Shutdown::Both);
        } else {
            let _ = std::io::copy(&mut slave, &mut std::io::sink());
        }
    });
}

/// Bytes of answers: more than the scan of the bus has, less than those of all cycles.
const ENOUGH: usize = 64 << 10;

#[test]
fn the_ledger_closes_when_the_slave_dies_or_falls_silent() {
    for (breaks, timeout_ms, why, loss) in [
        (true, None, "closed by the other side", "abandoned"),
        (false, Some(200), "does not answer: 3 timeouts of 200ms (--timeout)", "timeout"),
    ] {
        let (address, _server) = ends_after(ENOUGH, breaks);
        for method in Method::ALL {
            let address = address.clone();
            let request =
                EtherboneRequest { address, method, cycles: 500, timeout_ms, ..example() };
            let record = measured(&request, StepPlan::ByStage(5_000));
            let (reason, ledger) = (record.outcome.reason().unwrap(), &record.ledgers[0]);
            assert!(reason.contains(why), "{reason}");
            assert!(ledger.closes() && ledger.losses[loss] > 0, "{method:?}: {ledger}");
        }
    }
}

#[test]
fn points_share_the_conversation_with_a_character_device() {
    let bus = Description::timing_receiver().build().unwrap();
    let options = ServerOptions { pty: true, ..ServerOptions::loopback() };
    let w32 = Widths::only(Width::W32);
    let slave = Slave { address: w32, data: w32, ..Slave::new(bus) };
    let server = EbServer::bind(slave, options).unwrap();
    let path = server.pty_path().unwrap().trim_start_matches("/dev/");
    let request = EtherboneRequest { address: format!("dev/{path}").parse().unwrap(), ..example() };
    let server = server.spawn(None).unwrap();
    reach(&request, &StopFlag::default()).unwrap();
    for method in Method::ALL {
        let request = EtherboneRequest { method, ..request.clone() };
        run(&request, StepPlan::ByStage(6));
    }
    let other = EtherboneRequest { timeout_ms: Some(60_000), ..request };
    run(&other, StepPlan::ByStage(6));
    assert_eq!(server.stop().unwrap().probes, 2);
}
