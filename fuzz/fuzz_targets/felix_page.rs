//! Reads any bytes as pages and frames: no panic, and all messages lie inside the page.
#![no_main]

use daqmeter_wire::felix::page::{FRAME_BYTES, FelixFrame, Messages, PageChunk, PageWriter};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Some(head) = bytes.first_chunk::<FRAME_BYTES>()
        && let Ok(frame) = FelixFrame::parse(head)
    {
        assert_eq!(FelixFrame::parse(&frame.emit()), Ok(frame));
    }
    let messages: Vec<_> = Messages::new(bytes).map_while(Result::ok).collect();
    assert!(messages.iter().map(|message| message.payload.len()).sum::<usize>() <= bytes.len());
    let mut page = vec![0; bytes.len() + 16 * messages.len() + 64];
    let mut writer = PageWriter::default();
    for message in &messages {
        let chunk = PageChunk::whole(message.payload, message.status);
        assert!(writer.push(&mut page, message.tag, &chunk));
    }
    let again: Vec<_> =
        Messages::new(&page[..writer.used()]).map(|message| message.unwrap()).collect();
    assert_eq!(again, messages);
});
