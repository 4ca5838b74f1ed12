//! Runs any sequence of requests on a shared uplink: time ends, no flow exceeds the limit, all
//! requested data flow.
#![no_main]

use daqmeter_digitizer::devices::sis8300::emulated::{Profile, uplink::Uplink};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let model = Profile::default().uplink;
    let mut uplink = Uplink::new(model);
    for board in 0..4 {
        uplink.plug(if board == 0 { 1278e6 } else { 625.9e6 });
    }
    let (mut now, mut asked) = (0.0, 0.0);
    for step in bytes.chunks_exact(4).take(200) {
        let bytes = f64::from(u16::from_le_bytes([step[1], step[2]])) * 1e3 + 1.0;
        uplink.submit(now, usize::from(step[0] % 4), bytes);
        asked += bytes;
        now += f64::from(step[3]) * 1e-4;
        uplink.advance(now);
        assert!(uplink.delivered() <= model.limit_bytes_per_s * now + 4.0);
    }
    uplink.advance(now + 100.0);
    assert!((uplink.delivered() - asked).abs() < 800.0);
});
