#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "scratch")]
use daqmeter_readout::{chain, Scenario};
use daqmeter_readout::scenario::Hertz;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let mut s = Scenario::load(&a[1]).unwrap();
    s.trigger.rate = Hertz(a[2].parse().unwrap());
    let p = chain::Placement { reader_cpus: vec![1], receiver_cpus: vec![0], receivers: 0 };
    let d = chain::run(&s, &p, Duration::from_secs_f64(a[3].parse().unwrap()), None, &AtomicBool::new(false)).unwrap();
    println!("rate {:.0} dead {:.4} lost {} closes {} peak {} reader cpu {:.3} receiver cpu {:.3} facts {:?}", d.trigger_rate_hz(), d.dead_share(), d.lost(), d.closes(), d.peak_bytes(), d.readers[0].load.cpu, d.receivers[0].1.cpu, d.facts);
    println!("{:?} {:?}", d.readers[0].stats, d.readers[0].notes);
    println!("{}", d.ledger());
    let l = &d.receivers[0].0.latency_ns;
    println!("latency us p50 {} p99 {} max {} faults {:?} GB/s {:.2}", l.quantile(0.5)/1000, l.quantile(0.99)/1000, l.max()/1000, d.receivers[0].0.faults(), d.receivers[0].0.bytes as f64/d.receivers[0].0.span_ns as f64);
}
