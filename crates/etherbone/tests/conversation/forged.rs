//! Answers that are late, stale, from elsewhere or none.

use super::*;

fn forged(answers: impl Fn(&[u8]) -> Vec<Vec<u8>> + Send + 'static) -> Client {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = socket.local_addr().unwrap().port();
    std::thread::spawn(move || {
        let mut buffer = [0; 2048];
        while let Ok((bytes, from)) = socket.recv_from(&mut buffer) {
            for answer in answers(&buffer[..bytes]) {
                socket.send_to(&answer, from).unwrap();
            }
        }
    });
    let timeout = Duration::from_millis(200);
    let options = ClientOptions { address: W32, data: W32, probes: 0, timeout, ..quick() };
    open_with(&format!("udp/127.0.0.1/{port}"), &options).unwrap()
}

fn answer(tag: u16, value: u32) -> Vec<u8> {
    let mut bytes = vec![0x4e, 0x6f, 0x14, 0x44, 0x06, 0x0f, 1, 0];
    bytes.extend(u32::from(tag).to_be_bytes());
    bytes.extend(value.to_be_bytes());
    bytes.extend([0x0e, 0x0f, 1, 0]);
    bytes.extend((u32::from(tag) + 1).to_be_bytes());
    bytes.extend([0; 4]);
    bytes
}

fn tag_in(request: &[u8]) -> u16 {
    u16::from_be_bytes([request[10], request[11]])
}

#[test]
fn answers_with_stale_tags_or_that_are_none_are_never_delivered() {
    let mut client = forged(|request| {
        let tag = tag_in(request);
        let too_many =
            [&[0x4e, 0x6f, 0x14, 0x44, 0x06, 0x0f, 3, 0][..], &[0, 0, 0x80, 0], &[9; 12]].concat();
        let cut = answer(tag, 8)[..14].to_vec();
        let to_the_bus =
            [&[0x4e, 0x6f, 0x14, 0x44, 0x02, 0x0f, 1, 0][..], &[0, 0, 0x80, 0], &[9; 4]].concat();
        let stale = answer(tag.wrapping_add(2).max(0x8000), 7);
        let noise = [vec![], b"noise".to_vec(), too_many, cut, to_the_bus, stale];
        noise.into_iter().chain([answer(tag, 42), answer(tag, 43)]).collect()
    });
    for _ in 0..50 {
        assert_eq!(load(&mut client, 0).unwrap(), 42);
    }
    let counts = client.counts();
    assert_eq!(counts.completed, 50);
    assert!(counts.malformed >= 150 && counts.stray >= 150, "{counts:?}");
}

#[test]
fn an_answer_from_elsewhere_is_never_delivered() {
    let slave = UdpSocket::bind("127.0.0.1:0").unwrap();
    let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = slave.local_addr().unwrap().port();
    std::thread::spawn(move || {
        let mut buffer = [0; 2048];
        while let Ok((bytes, from)) = slave.recv_from(&mut buffer) {
            let tag = tag_in(&buffer[..bytes]);
            stranger.send_to(&answer(tag, 66), from).unwrap();
            slave.send_to(&answer(tag, 42), from).unwrap();
        }
    });
    let options = ClientOptions { address: W32, data: W32, probes: 0, ..quick() };
    let mut client = open_with(&format!("udp/127.0.0.1/{port}"), &options).unwrap();
    for _ in 0..20 {
        assert_eq!(load(&mut client, 0).unwrap(), 42);
    }
    assert_eq!(client.counts().stray, 0);
}

#[test]
fn a_late_answer_is_not_taken_for_that_of_the_next_cycle() {
    let held = std::sync::Mutex::new(None);
    let mut client = forged(move |request| {
        let tag = tag_in(request);
        match held.lock().unwrap().replace(tag) {
            None => vec![],
            Some(before) => vec![answer(before, 1), answer(tag, 2)],
        }
    });
    assert!(matches!(load(&mut client, 0), Err(EbError::Timeout(_))));
    assert_eq!(load(&mut client, 0).unwrap(), 2);
    assert_eq!((client.counts().timed_out, client.counts().stray), (1, 2));
}
