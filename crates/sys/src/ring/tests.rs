use super::*;

fn small(ring_bytes: usize, unit_bytes: usize, gap_bytes: usize) -> (Producer, Consumer) {
    ring(&Shape { ring_bytes, unit_bytes, gap_bytes, pages: Pages::Base, numa_node: None }).unwrap()
}

#[test]
fn equal_pointers_are_empty_or_full_by_their_bits() {
    let (mut card, mut host) = small(4096, 1024, 0);
    assert_eq!((card.free(), host.filled()), (4096, 0));
    card.write(0, &[7; 4096]);
    card.advance(4096);
    assert_eq!((card.free(), host.filled(), card.card().offset), (0, 4096, host.host().offset));
    assert_eq!(host.spans(0)[0].len(), 4096);
    host.release(4096);
    assert_eq!((card.free(), host.filled()), (4096, 0));
}

#[test]
fn two_spans_at_a_wrap_and_none_of_a_block_that_is_not_whole() {
    let (mut card, mut host) = small(4096, 1024, 0);
    card.write(0, &[1; 3072]);
    card.advance(3072);
    host.release(3072);
    card.write(0, &[2; 1024]);
    card.write(1024, &[3; 1536]);
    card.advance(2560);
    assert_eq!(host.spans(0).map(<[u8]>::len), [1024, 1024]);
    assert_eq!((host.spans(0)[0][0], host.spans(0)[1][0]), (2, 3));
    assert_eq!(host.spans(1024).map(<[u8]>::len), [1024, 0]);
    assert_eq!(host.spans(1024)[0][0], 3);
    assert_eq!(host.spans(4096).map(<[u8]>::len), [0, 0]);
}

/// A host that releases nearly the whole ring moves its pointer back by less than the gap, so the
/// card would miss the wrap.
#[test]
fn a_wrap_shorter_than_the_gap_is_not_seen_and_therefore_made_in_three_steps() {
    let old = Pointer { offset: 2048, even: false };
    assert!(!accept_host(old, 1024, 1024).even, "back by the gap: not a wrap");
    assert!(accept_host(old, 1023, 1024).even, "back by more: a wrap");
    assert!(!accept_host(old, 3000, 1024).even, "forward");
    let (mut card, mut host) = small(8192, 1024, 3072);
    card.advance(2048);
    host.release(2048);
    for _ in 0..50 {
        card.advance(7168);
        host.release(7168);
        assert_eq!((card.free(), host.filled()), (8192, 0));
    }
}

#[test]
fn a_gap_of_half_the_ring_is_refused() {
    let shape = Shape {
        ring_bytes: 8192,
        unit_bytes: 1024,
        gap_bytes: 4096,
        pages: Pages::Base,
        numa_node: None,
    };
    assert!(ring(&shape).unwrap_err().to_string().contains("gap"));
    assert!(
        ring(&Shape { ring_bytes: 1000, ..shape })
            .unwrap_err()
            .to_string()
            .contains("whole number")
    );
    let odd = ring(&Shape { ring_bytes: 8000, unit_bytes: 1000 / 8 * 4, ..shape })
        .unwrap_err()
        .to_string();
    assert!(odd.contains("64-bit words"), "{odd}");
    let error = ring(&Shape { ring_bytes: 1 << 46, ..shape }).unwrap_err().to_string();
    assert!(error.contains("available"), "{error}");
}

fn shared(ring_bytes: usize, unit_bytes: usize) -> (Producer, OwnedFd) {
    let (card, host) = small(ring_bytes, unit_bytes, 0);
    drop(host);
    let fd = card.share().unwrap().try_clone_to_owned().unwrap();
    (card, fd)
}

#[test]
fn the_other_process_sees_bytes_times_and_words() {
    let (mut card, fd) = shared(4096, 1024);
    card.write(0, &[9; 1024]);
    card.set_timestamp(0, 77);
    card.advance(1024);
    card.word(3).store(5, Ordering::Relaxed);
    let mut other = Consumer::open(fd).unwrap();
    assert_eq!(other.spans(0).map(<[u8]>::len), [0, 0], "nothing was taken");
    other.take(4096);
    assert_eq!((other.ring_bytes(), other.unit_bytes(), other.spans(0)[0][0]), (4096, 1024, 9));
    assert_eq!((other.timestamp(0), other.word(3).load(Ordering::Relaxed)), (77, 5));
}

#[test]
fn what_is_taken_crosses_the_wrap_and_is_lent_as_by_a_card_in_this_process() {
    let (mut card, fd) = shared(4096, 1024);
    let mut other = Consumer::open(fd).unwrap();
    let mut next = 0_u8;
    for _ in 0..7 {
        for _ in 0..3 {
            card.write(0, &[next; 1024]);
            card.advance(1024);
            next += 1;
        }
        other.take(1024);
        other.take(0);
        assert_eq!(
            other.spans(0).iter().map(|span| span.len()).sum::<usize>(),
            2048,
            "a unit each time"
        );
        other.take(usize::MAX);
        let spans = other.spans(1024);
        let seen: Vec<u8> =
            spans.iter().flat_map(|span| span.chunks(1024).map(|unit| unit[1023])).collect();
        assert_eq!(seen, [next - 2, next - 1]);
        other.release(3072);
        assert_eq!((card.free(), other.spans(0).map(<[u8]>::len)), (4096, [0, 0]));
    }
}

#[test]
fn a_ring_that_is_shared_has_one_reader() {
    let (card, host) = small(4096, 1024, 0);
    let refused = card.share().unwrap_err().to_string();
    assert!(refused.contains("in this process"), "{refused}");
    drop(host);
    let open = || Consumer::open(card.share().unwrap().try_clone_to_owned().unwrap());
    let first = open().unwrap();
    assert!(open().unwrap_err().to_string().contains("a reader already"));
    drop(first);
    let second = open().unwrap();
    card.forget_reader();
    let third = open().unwrap();
    drop(second);
    assert!(open().is_err(), "one that ends late does not end the next one's claim");
    drop(third);
    open().unwrap();
}

/// The card's process may write anything; the lent bytes and the reader's accounts must not change.
#[test]
fn a_card_that_breaks_the_protocol_changes_nothing_that_is_lent() {
    use std::os::unix::fs::FileExt;
    let (mut card, fd) = shared(4096, 1024);
    card.write(0, &[1; 2048]);
    card.advance(2048);
    let memory = std::fs::File::from(fd.try_clone().unwrap());
    let mut other = Consumer::open(fd).unwrap();
    other.take(usize::MAX);
    let spans = other.spans(0);
    memory.write_all_at(&[0xEE; 4096], Shape::layout(4096, 1024).unwrap().0 as u64).unwrap();
    assert!(spans[0].len() == 2048 && spans[0].iter().all(|byte| *byte == 1));
    for raw in [0, 3, u64::MAX, 4096 << 1, 1] {
        memory.write_all_at(&u64::to_ne_bytes(raw), AT_CARD as u64 * 8).unwrap();
        other.take(usize::MAX);
        assert!(other.spans(0)[0][..1024].iter().all(|byte| *byte == 1), "{raw}");
    }
    other.release(2048);
}

#[test]
fn a_host_that_breaks_the_protocol_takes_no_room_back() {
    use std::os::unix::fs::FileExt;
    let (mut card, fd) = shared(4096, 1024);
    let memory = std::fs::File::from(fd);
    for raw in [2048 << 1, 1, u64::MAX, 0] {
        let free = card.free();
        memory.write_all_at(&u64::to_ne_bytes(raw), AT_HOST as u64 * 8).unwrap();
        assert!(card.free() >= free, "{raw}");
        card.write(0, &vec![0; free]);
    }
    memory.write_all_at(&u64::to_ne_bytes(512 << 1), AT_HOST as u64 * 8).unwrap();
    let fd = card.share().unwrap().try_clone_to_owned().unwrap();
    assert!(Consumer::open(fd).unwrap_err().to_string().contains("inside a block"));
}

/// The sum wrapped in a release build, and a safe call wrote before the ring.
#[test]
#[should_panic(expected = "has not released")]
fn a_place_whose_sum_overflows_is_not_free() {
    small(4096, 1024, 0).0.write(usize::MAX, &[1, 2]);
}

/// The sum wrapped in a release build, and the header's own words were lent.
#[test]
#[should_panic(expected = "of a ring")]
fn a_word_whose_sum_overflows_is_none() {
    small(4096, 1024, 0).0.word(usize::MAX - HEADER_WORDS + 1 + AT_HOST);
}

#[test]
fn foreign_memory_is_no_ring() {
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    assert!(Consumer::open(file.into()).unwrap_err().to_string().contains("sealed"));
    let sealed = memfd(1 << 20, MemfdFlags::empty()).unwrap();
    assert!(Consumer::open(sealed).unwrap_err().to_string().contains("version"));
    assert!(
        Consumer::open(memfd(16, MemfdFlags::empty()).unwrap())
            .unwrap_err()
            .to_string()
            .contains("short")
    );
}

#[test]
#[should_panic(expected = "has not released")]
fn a_card_that_overwrites_is_a_bug() {
    let (mut card, _host) = small(4096, 1024, 0);
    card.advance(4096);
    card.write(0, &[1]);
}
