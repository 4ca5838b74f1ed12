//! Reader and receiver against their unavoidable work: decoding, a copy of the bytes, the same
//! pages over a bare socket.
//!
//! Work with a thread of its own is measured by its CPU time. The emulated card works in the
//! reader's thread; its time is measured alone and subtracted.

use std::hint::black_box;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use daqmeter_readout::chain::{Chain, pin};
use daqmeter_readout::decode::{blocks_of_card, decode};
use daqmeter_readout::port::Port;
use daqmeter_readout::scenario::{Hertz, Nanos};
use daqmeter_readout::{Card, Scenario};
use daqmeter_sys::clock::monotonic_ns;
use daqmeter_sys::cpu_time;
use daqmeter_sys::wait::sleep_until;
use daqmeter_wire::felix::decoder::most_subchunks;
use daqmeter_wire::felix::page::{Messages, PageWriter, Status};
use daqmeter_wire::felix::{BlockFormat, Subchunk, subchunks};

use crate::interleaved::{Row, Side, in_turn, over};

const TURNS: usize = 11;

fn cpu_ns(work: impl FnOnce()) -> f64 {
    let used = || {
        let usage = cpu_time::of_thread();
        (usage.user_ns + usage.system_ns) as f64
    };
    let before = used();
    work();
    used() - before
}

/// Scenario of all comparisons: triggers per second, split over its channels.
fn scenario(rate_hz: f64, channels: u16) -> Scenario {
    let mut scenario = Scenario::load("gbt").unwrap();
    scenario.trigger.rate = Hertz(rate_hz);
    // A device has at most eight.
    scenario.card.devices = channels.div_ceil(8);
    scenario.card.channels = channels.min(8);
    // A look at the ring every millisecond: waking up costs some 10 us on a virtual machine.
    scenario.reader.poll = Nanos(1_000_000);
    scenario
}

#[derive(Clone, Copy, Default)]
struct Cost {
    reader_ns: f64,
    receiver_ns: f64,
    chunks: f64,
    pages: usize,
    bytes: usize,
}

/// Runs a chain of threads: all readers on the first CPU, as many receivers on the second.
fn chain(scenario: &Scenario, triggers: u64, cpus: (u32, u32)) -> Cost {
    let failed = &AtomicBool::new(false);
    let quit = &|| failed.load(Ordering::Relaxed);
    let most = Duration::from_secs(60);
    let chain = Chain::open(scenario, usize::MAX, most, Some(triggers), None).unwrap();
    let total = Mutex::new(Cost::default());
    let total = &total;
    std::thread::scope(|scope| {
        for mut reader in chain.readers {
            scope.spawn(move || {
                pin(Some(cpus.0)).unwrap();
                let mut done = None;
                let ns = cpu_ns(|| done = Some(reader.read(quit)));
                let done = done.unwrap();
                assert!(done.account.closes());
                let mut total = total.lock().unwrap();
                total.reader_ns += ns;
                total.chunks += done.stats.chunks as f64;
            });
        }
        for receiving in chain.receivers {
            scope.spawn(move || {
                pin(Some(cpus.1)).unwrap();
                let mut report = None;
                let ns = cpu_ns(|| report = Some(receiving.receive(failed, quit).unwrap()));
                let report = report.unwrap().0;
                assert!(report.closes());
                let mut total = total.lock().unwrap();
                total.receiver_ns += ns;
                total.pages += usize::try_from(report.pages).unwrap();
                total.bytes += usize::try_from(report.bytes).unwrap();
            });
        }
    });
    *total.lock().unwrap()
}

fn card_alone(scenario: &Scenario, triggers: u64) -> f64 {
    let (mut card, mut consumers) = Card::new(scenario).unwrap();
    card.source().end_after(triggers);
    let card = Arc::new(Mutex::new(card));
    let mut port = Port::here(card.clone(), consumers.remove(0)).unwrap();
    port.go();
    let is_done = || card.lock().unwrap().issued() == triggers;
    let mut bytes = 0;
    let ns = cpu_ns(|| {
        while !is_done() {
            port.advance();
            let filled = port.consumer().filled();
            bytes += filled;
            port.release(filled);
            sleep_until(monotonic_ns() + scenario.reader.poll.0);
        }
    });
    assert!(bytes > 0, "the card gave nothing");
    ns
}

/// Sends as a reader that looks again after a while: it never blocks, which would cost a wake-up
/// for each piece.
fn send(stream: &mut TcpStream, mut page: &[u8]) {
    while !page.is_empty() {
        match stream.write(page) {
            Ok(sent) => page = &page[sent..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                sleep_until(monotonic_ns() + 200_000);
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// Sends pages of one size over a bare socket; returns ns of CPU of both ends.
fn raw(pages: usize, page_bytes: usize, pool: usize, cpus: (u32, u32)) -> (f64, f64) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::scope(|scope| {
        let sender = scope.spawn(move || {
            pin(Some(cpus.0)).unwrap();
            let (mut stream, _) = listener.accept().unwrap();
            stream.set_nonblocking(true).unwrap();
            let memory = vec![vec![1_u8; page_bytes]; pool];
            cpu_ns(|| (0..pages).for_each(|page| send(&mut stream, &memory[page % pool])))
        });
        let receiver = scope.spawn(move || {
            pin(Some(cpus.1)).unwrap();
            let mut stream = TcpStream::connect(address).unwrap();
            let mut buffer = vec![0; 1 << 20];
            cpu_ns(|| while stream.read(&mut buffer).unwrap() > 0 {})
        });
        (sender.join().unwrap(), receiver.join().unwrap())
    })
}

fn pages_of(format: BlockFormat, blocks: &[u8], page_bytes: usize, pages: usize) -> Vec<Vec<u8>> {
    let mut room = vec![Subchunk::default(); most_subchunks(format)];
    let mut blocks = blocks.chunks_exact(format.block_bytes);
    let page = |_| {
        let (mut page, mut writer) = (vec![0; page_bytes], PageWriter::default());
        while writer.used() + 2 * format.block_bytes < page_bytes {
            let block = blocks.next().unwrap();
            let (header, found) = subchunks(format, block, &mut room).unwrap();
            for subchunk in found {
                let (tag, range) = (u64::from(header.elink.number()), subchunk.range());
                let (begin, length) = (range.start, range.len());
                assert!(writer.push(&mut page, tag, Status::default(), block, begin, length));
            }
        }
        page.truncate(writer.used());
        page
    };
    (0..pages).map(page).collect()
}

fn walk(pages: &[Vec<u8>]) -> f64 {
    let mut chunks = 0;
    for page in pages {
        for message in Messages::new(page) {
            black_box(message.unwrap().payload);
            chunks += 1;
        }
    }
    f64::from(chunks)
}

fn print(row: &Row, against: &Row) {
    println!("    {:<44} {:>6.2} ns a chunk; {}", row.name, row.median(), over(row, against));
}

/// One reader of 24 E-links and one receiver over TCP on loopback, at a rate.
pub(crate) fn chain_and_parts(rate_hz: f64, cpus: (u32, u32)) {
    let triggers = 400_000;
    let scenario = scenario(rate_hz, 1);
    let format = scenario.format().unwrap();
    let ring_bytes = 64 << 20;
    let blocks = blocks_of_card(&scenario, ring_bytes).unwrap();
    let first = chain(&scenario, triggers, cpus);
    let per_page = first.bytes / first.pages;
    let (pages, pool) = (first.pages, scenario.reader.pages);
    let page_memory = pages_of(format, &blocks, per_page.min(ring_bytes / 4), 4);
    let walked = walk(&page_memory);
    println!(
        "  {:.0} kHz, {:.1} M chunks a turn, {pages} pages of {per_page} B, {TURNS} turns",
        rate_hz / 1e3,
        first.chunks / 1e6
    );
    let receiver = std::cell::Cell::new(0.0);
    let raw_receiver = std::cell::Cell::new(0.0);
    let mut room = vec![Subchunk::default(); most_subchunks(format)];
    let in_blocks = decode(format, &blocks, &mut room).unwrap() as f64;
    let mut copied = vec![vec![0_u8; per_page]; pool];
    let rows = in_turn(
        TURNS,
        vec![
            Side::measured("reader and card", || {
                let cost = chain(&scenario, triggers, cpus);
                receiver.set(cost.receiver_ns / cost.chunks);
                cost.reader_ns / cost.chunks
            }),
            Side::measured("receiver", || receiver.get()),
            Side::measured("card alone", || card_alone(&scenario, triggers) / first.chunks),
            Side::timed("decoding", in_blocks, || {
                decode(format, &blocks, &mut room).unwrap();
            }),
            Side::timed("copy of the bytes", in_blocks, || {
                for (at, bytes) in blocks.chunks(per_page).enumerate() {
                    copied[at % pool][..bytes.len()].copy_from_slice(bytes);
                    black_box(&mut copied);
                }
            }),
            Side::measured("bare socket, sending", || {
                let (sent, received) = raw(pages, per_page, pool, cpus);
                raw_receiver.set(received / first.chunks);
                sent / first.chunks
            }),
            Side::measured("bare socket, receiving", || raw_receiver.get()),
            Side::timed("page walk", 16.0 * walked, || {
                for _ in 0..16 {
                    black_box(walk(&page_memory));
                }
            }),
        ],
    );
    let [both, receiver, card, decoding, copy, sending, receiving, walking] = &rows[..] else {
        unreachable!("as many rows as sides")
    };
    let reader_parts = Row::sum("decoding + copy + bare sending", &[decoding, copy, sending]);
    let with_card = Row::sum("the same and the card", &[&reader_parts, card]);
    let receiver_parts = Row::sum("bare receiving + page walk", &[receiving, walking]);
    let reader = Row {
        name: "reader without its card".to_owned(),
        ns: both.ns.iter().zip(&card.ns).map(|(a, b)| a - b).collect(),
    };
    for part in [card, decoding, copy, sending] {
        print(part, &reader_parts);
    }
    print(&reader, &reader_parts);
    print(both, &with_card);
    for row in [receiving, walking, receiver] {
        print(row, &receiver_parts);
    }
}

/// Compares chunks at one rate by one channel and by sixteen: readers share one CPU, receivers
/// another. Sixteen that look at their rings every 16 ms wake as often for a chunk as the one. They
/// show the share of wake-ups. The emulated cards are measured by themselves.
pub(crate) fn instances(rate_hz: f64, cpus: (u32, u32)) {
    let triggers = 400_000;
    let one = scenario(rate_hz, 1);
    let mut many = scenario(rate_hz / 16.0, 16);
    // The total memory is that of the one.
    many.card.ring.0 = one.card.ring.0 / 16;
    let mut rarely = many.clone();
    rarely.reader.poll = Nanos(16 * many.reader.poll.0);
    // Each channel has a card of its own, as a reader has it in its thread.
    let mut alone = scenario(rate_hz / 16.0, 1);
    alone.card.ring = many.card.ring;
    let mut alone_rarely = alone.clone();
    alone_rarely.reader.poll = rarely.reader.poll;
    let chunks = chain(&one, triggers, cpus).chunks;
    let receivers = [(); 3].map(|()| std::cell::Cell::new(0.0));
    let side = |name: &str, scenario: &Scenario, triggers: u64, at: usize| {
        let (scenario, cell) = (scenario.clone(), &receivers[at]);
        Side::measured(name, move || {
            let cost = chain(&scenario, triggers, cpus);
            cell.set(cost.receiver_ns / cost.chunks);
            cost.reader_ns / cost.chunks
        })
    };
    let rows = in_turn(
        TURNS,
        vec![
            side("one reader", &one, triggers, 0),
            Side::measured("its receiver", || receivers[0].get()),
            side("16 readers", &many, triggers / 16, 1),
            Side::measured("their 16 receivers", || receivers[1].get()),
            side("16 readers, 16 ms", &rarely, triggers / 16, 2),
            Side::measured("their 16 receivers", || receivers[2].get()),
            Side::measured("one card", || card_alone(&one, triggers) / chunks),
            Side::measured("16 cards", || 16.0 * card_alone(&alone, triggers / 16) / chunks),
            Side::measured("16 cards, 16 ms", || {
                16.0 * card_alone(&alone_rarely, triggers / 16) / chunks
            }),
        ],
    );
    println!("  {:.0} kHz of 24 chunks in all, {TURNS} turns", rate_hz / 1e3);
    let shown = [(0, 0), (2, 0), (4, 0), (1, 1), (3, 1), (5, 1), (6, 6), (7, 6), (8, 6)];
    for (row, against) in shown {
        print(&rows[row], &rows[against]);
    }
}
