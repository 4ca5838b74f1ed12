//! Speed targets as ratios in one run: `cargo bench -p daqmeter-etherbone`.
//! Client and server run on the last CPU allowed; where there are two, the server runs on the first
//! one. Medians are printed and not judged, because shared machines are noisy.

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark prints, and may stop when the host refuses"
)]

use std::io::{Read, Write};
use std::net::TcpStream;

use daqmeter_etherbone::bus::Description;
use daqmeter_etherbone::server::Running;
use daqmeter_etherbone::{
    Address, Client, ClientOptions, EbServer, PingPongRequest, Protocol, ServerOptions, Slave,
};
use daqmeter_harness::{Request, Session};
use daqmeter_sys::{affinity, clock};
use daqmeter_wire::etherbone::cycle::{Op, StatusCheck};
use daqmeter_wire::etherbone::{Endian, Width, Widths};

const MEMORY: u64 = 0x10000;

fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}

fn us(work: &mut dyn FnMut()) -> f64 {
    let begin = clock::monotonic_ns();
    work();
    (clock::monotonic_ns() - begin) as f64 * 1e-3
}

/// Round trips of one sample: a side's threads are warm again after the other sides used the
/// caches.
const ROUND_TRIPS: usize = 32;

fn in_turn<const N: usize>(rounds: usize, mut sides: [&mut dyn FnMut(); N]) -> [f64; N] {
    let mut samples = [(); N].map(|()| Vec::with_capacity(rounds));
    for round in 0..rounds + rounds / 10 {
        for (side, samples) in sides.iter_mut().zip(&mut samples) {
            let took = us(side);
            if round >= rounds / 10 {
                samples.push(took);
            }
        }
    }
    samples.map(median)
}

fn serve(cpu: u32) -> Running {
    let description = Description::memory(MEMORY, MEMORY + 0xFFFF, Widths::ALL, Endian::Big);
    let slave = Slave::new(description.build().unwrap());
    EbServer::bind(slave, ServerOptions::loopback()).unwrap().spawn(Some(cpu)).unwrap()
}

fn client(proto: &str, server: &Running) -> Client {
    let w32 = Widths::only(Width::W32);
    let options = ClientOptions { address: w32, data: w32, ..ClientOptions::default() };
    Client::open(&Address::parse(&format!("{proto}/127.0.0.1/{}", server.port)).unwrap(), &options)
        .unwrap()
}

fn reads(count: u64) -> Vec<Op> {
    (0..count).map(|word| Op::read(MEMORY + 4 * word, Width::W32)).collect()
}

fn ping_pong(transport: Protocol, message_bytes: u64, cpu: u32) -> Box<dyn Session> {
    let request = PingPongRequest {
        transport,
        message_bytes,
        batch: 1,
        counted_bytes: message_bytes,
        peer_cpu: Some(cpu),
    };
    let mut session = request.job().unwrap().open().unwrap().remove(0);
    session.prepare().unwrap();
    session.verify().unwrap();
    session
}

fn blocking(proto: &str, cpu: u32) {
    let server = serve(cpu);
    let [mut one, mut few, mut many] = [(); 3].map(|()| client(proto, &server));
    let (one_read, many_reads) = (reads(1), reads(65));
    let mut raw = match proto {
        "udp" => ping_pong(Protocol::Udp, 28, cpu),
        _ => ping_pong(Protocol::Tcp, 24, cpu),
    };
    let cycles = |client: &mut Client, ops: &[Op]| {
        for _ in 0..ROUND_TRIPS {
            client.cycle(ops, StatusCheck::Status).unwrap();
        }
    };
    let [raw_us, one_us] = in_turn(
        1000,
        [&mut || raw.step(0, ROUND_TRIPS as u64).unwrap(), &mut || cycles(&mut one, &one_read)],
    )
    .map(|us| us / ROUND_TRIPS as f64);
    println!(
        "  {proto} blocking, 1 read: {one_us:.2} us; raw select ping-pong {raw_us:.2} us; ratio {:.2} (target 1.25)",
        one_us / raw_us
    );
    let [few_us, many_us] = in_turn(
        1000,
        [&mut || cycles(&mut few, &one_read), &mut || cycles(&mut many, &many_reads)],
    )
    .map(|us| us / ROUND_TRIPS as f64);
    println!(
        "  {proto} each extra read of 64: {:.1} ns (target 25)",
        (many_us - few_us) / 64.0 * 1e3
    );
}

fn series(client: &mut Client, ops: &[Op], cycles: u64) -> u64 {
    let mut words = 0;
    let mut pipeline = client.pipeline(|done| {
        assert!(done.is_clean());
        words += done.words.len() as u64;
    });
    for token in 0..cycles {
        pipeline.submit(ops, StatusCheck::Status, token).unwrap();
    }
    pipeline.finish().unwrap();
    words
}

fn pipelined(proto: &str, cpu: u32) {
    let server = serve(cpu);
    let mut client = client(proto, &server);
    for (count, cycles) in [(1, 500), (8, 500), (16, 500), (16, 5000)] {
        let ops = reads(count);
        let [took_us] =
            in_turn(1000, [&mut || assert_eq!(series(&mut client, &ops, cycles), count * cycles)]);
        let target = if (count, cycles) == (16, 500) { " (target 35)" } else { "" };
        println!(
            "  {proto} pipelined, {count} reads x {cycles} cycles: {:.1} M reads/s{target}",
            (count * cycles) as f64 / took_us
        );
    }
    let begin = clock::monotonic_ns();
    let answered = series(&mut client, &reads(1), 1_000_000);
    let seconds = (clock::monotonic_ns() - begin) as f64 * 1e-9;
    println!(
        "  {proto} 1,000,000 queued cycles of one read: {answered} answered in {seconds:.2} s"
    );
}

fn crowded(cpu: u32) {
    let (empty, full) = (serve(cpu), serve(cpu));
    let idle: Vec<TcpStream> = (0..1000)
        .map(|_| {
            let mut stream = TcpStream::connect(("127.0.0.1", full.port)).unwrap();
            stream.write_all(&[0x4e, 0x6f, 0x11, 0x44, 0, 0, 0, 1]).unwrap();
            stream.read_exact(&mut [0; 8]).unwrap();
            stream
        })
        .collect();
    let mut slow = TcpStream::connect(("127.0.0.1", full.port)).unwrap();
    slow.set_nonblocking(true).unwrap();
    let read = [0xa8, 0x0f, 0, 1, 0, 0, 0x80, 0, 0, 1, 0, 0];
    let requests: Vec<u8> =
        [0x4e, 0x6f, 0x11, 0x44, 0, 0, 0, 1].into_iter().chain(read.repeat(100_000)).collect();
    let mut sent = 0;
    for proto in ["udp", "tcp"] {
        let [mut alone, mut beside] = [client(proto, &empty), client(proto, &full)];
        let [mut alone_series, mut beside_series] = [client(proto, &empty), client(proto, &full)];
        let (one, many) = (reads(1), reads(16));
        let [alone_us, beside_us, alone_series_us, beside_series_us] = in_turn(
            3000,
            [
                &mut || assert_eq!(alone.cycle(&one, StatusCheck::Status).unwrap().values, [0]),
                &mut || {
                    // The server takes as much as it can; its answers are never read.
                    if let Ok(now) = slow.write(&requests[sent..]) {
                        sent = (sent + now) % requests.len();
                        if sent < 8 {
                            sent = 8
                        }
                    }
                    assert_eq!(beside.cycle(&one, StatusCheck::Status).unwrap().values, [0]);
                },
                &mut || assert_eq!(series(&mut alone_series, &many, 100), 1600),
                &mut || assert_eq!(series(&mut beside_series, &many, 100), 1600),
            ],
        );
        println!(
            "  {proto} beside {} idle connections and a slow client: blocking {:+.1} %, pipelined {:+.1} % (target +10)",
            idle.len(),
            (beside_us / alone_us - 1.0) * 100.0,
            (beside_series_us / alone_series_us - 1.0) * 100.0
        );
    }
}

fn main() {
    let cpus = affinity::allowed_cpus().unwrap();
    let (first, last) = (cpus[0], *cpus.last().unwrap());
    affinity::pin_to(last).unwrap();
    println!("client and server on CPU {last}");
    for proto in ["udp", "tcp"] {
        blocking(proto, last);
        pipelined(proto, last);
    }
    crowded(last);
    if first != last {
        println!("client on CPU {last}, server on CPU {first}");
        for proto in ["udp", "tcp"] {
            blocking(proto, first);
            pipelined(proto, first);
        }
        crowded(first);
    }
}
