//! Beginning of a conversation: probes, widths, and the framing that a TCP server understands.

use std::time::Duration;

use daqmeter_sys::clock::monotonic_ns;
use daqmeter_wire::etherbone::cycle::{Op, Space, StatusCheck};
use daqmeter_wire::etherbone::message::PROBE_BYTES;
use daqmeter_wire::etherbone::{EbHeader, EbLayout, EbProbe, Widths, config, litex};

use super::{
    Client, ClientCounts, ClientOptions, CycleOutcome, EbDialect, InFlight, Outgoing, as_ns, left,
};
use crate::EbError;
use crate::address::Address;
use crate::transport::{self, EbTransport, Framing, RECEIVE_BYTES};

/// LiteX servers on TCP may send a banner first.
const BANNER_WAIT: Duration = Duration::from_millis(300);
/// A server that does not understand a framing is silent or ends the connection.
const FRAMING_WAIT: Duration = Duration::from_secs(1);

impl Client {
    /// Opens a conversation. On TCP it first tries a bare stream, then messages with headers, as in
    /// the C library of 2014.
    pub fn open(address: &Address, options: &ClientOptions) -> Result<Client, EbError> {
        let name = address.to_string();
        let connect = || transport::open(address, options.dialect, options.probe_timeout);
        let has_one_framing =
            options.dialect == EbDialect::Litex || !matches!(address, Address::Tcp(..));
        let mut client = Client::over(connect()?, options, &name)?;
        if has_one_framing || client.is_understood() {
            return Ok(client);
        }
        drop(client);
        let mut client = Client::framed(connect()?, Framing::Messages, options, &name)?;
        if client.is_understood() {
            return Ok(client);
        }
        drop(client);
        Client::over(connect()?, options, &name)
    }

    fn is_understood(&mut self) -> bool {
        let deadline = std::mem::replace(&mut self.options.timeout, FRAMING_WAIT);
        let read = Op { space: Space::Config, ..Op::read(config::ERRORS, self.layout.data) };
        let answered = self.cycle(&[read], StatusCheck::Silent).is_ok();
        self.options.timeout = deadline;
        self.flights.counts = ClientCounts::default();
        answered
    }

    pub fn over(
        transport: Box<dyn EbTransport>,
        options: &ClientOptions,
        name: &str,
    ) -> Result<Client, EbError> {
        let framing = transport.framing();
        Client::framed(transport, framing, options, name)
    }

    fn framed(
        mut transport: Box<dyn EbTransport>,
        framing: Framing,
        options: &ClientOptions,
        name: &str,
    ) -> Result<Client, EbError> {
        let layout = match options.dialect {
            EbDialect::Gsi => probe(transport.as_mut(), options)?,
            EbDialect::Litex => litex_hello(transport.as_mut(), options)?,
        };
        let layout = layout.ok_or_else(|| {
            EbError::Other(format!(
                "no answer to {} probes of {:?} each; is an Etherbone slave listening at {name}?",
                options.probes, options.probe_timeout
            ))
        })?;
        let late_ns = as_ns(options.timeout.max(Duration::from_secs(1)));
        Ok(Client {
            framing,
            layout,
            options: options.clone(),
            flights: InFlight::new(options.window_cycles, transport.window_bytes(), late_ns),
            transport,
            outgoing: Outgoing::default(),
            received: vec![0; RECEIVE_BYTES].into_boxed_slice(),
            partial: Vec::new(),
            outcome: CycleOutcome::default(),
            now_ns: monotonic_ns(),
            litex_counter: 0,
            litex_timeout: options.timeout,
        })
    }
}

fn probe(
    transport: &mut dyn EbTransport,
    options: &ClientOptions,
) -> Result<Option<EbLayout>, EbError> {
    let is_stream = transport.framing().is_stream();
    if options.probes == 0 {
        return without_probe(is_stream, options).map(Some);
    }
    let mut buffer = vec![0; RECEIVE_BYTES];
    let mut heard = Vec::new();
    for attempt in 0..options.probes {
        #[allow(clippy::cast_possible_truncation, reason = "any 32 bits do")]
        let id = (monotonic_ns() >> 4) as u32 ^ attempt << 28;
        let probe = EbProbe { response: false, address: options.address, data: options.data, id };
        if attempt == 0 || !is_stream {
            transport.send(&probe.emit(), &[PROBE_BYTES])?;
        }
        let deadline_ns = monotonic_ns() + as_ns(options.probe_timeout);
        while let Some(wait) = left(deadline_ns) {
            let arrived = transport::receive(transport, &mut buffer, wait, &options.stop)?;
            let Some(arrived) = arrived else { continue };
            let answer = if is_stream {
                heard.extend_from_slice(&buffer[..arrived.bytes]);
                if heard.len() < PROBE_BYTES {
                    continue;
                }
                Some(EbProbe::parse(&heard[..PROBE_BYTES])?).filter(|answer| answer.response)
            } else {
                buffer[..arrived.bytes]
                    .chunks(arrived.segment_bytes)
                    .filter_map(|datagram| EbProbe::parse(datagram).ok())
                    .find(|answer| answer.response && answer.id == id)
            };
            if let Some(answer) = answer {
                return settle(options, answer).map(Some);
            }
        }
    }
    Ok(None)
}

fn settle(options: &ClientOptions, slave: EbProbe) -> Result<EbLayout, EbError> {
    let common = |ours: Widths, theirs: Widths| ours.and(theirs).widest();
    match (common(options.address, slave.address), common(options.data, slave.data)) {
        (Some(address), Some(data)) => Ok(EbLayout { address, data }),
        _ => Err(EbError::Other(format!(
            "no width in common: we offer addresses {}, data {}; the slave addresses {}, data {}",
            options.address, options.data, slave.address, slave.data
        ))),
    }
}

fn without_probe(is_stream: bool, options: &ClientOptions) -> Result<EbLayout, EbError> {
    if is_stream {
        return Err(EbError::other("a stream begins with a probe: ask for at least one (-r 1)"));
    }
    match (options.address.single(), options.data.single()) {
        (Some(address), Some(data)) => Ok(EbLayout { address, data }),
        _ => Err(EbError::other(
            "without a probe there must be exactly one address and one data width (-a 32 -d 32 -r 0)",
        )),
    }
}

fn litex_hello(
    transport: &mut dyn EbTransport,
    options: &ClientOptions,
) -> Result<Option<EbLayout>, EbError> {
    let mut buffer = vec![0; RECEIVE_BYTES];
    if transport.framing().is_stream() {
        transport::receive(transport, &mut buffer, BANNER_WAIT, &options.stop)?;
        return Ok(Some(EbLayout::L32));
    }
    for _ in 0..options.probes {
        transport.send(&litex::probe(), &[litex::PROBE_BYTES])?;
        let wait = options.probe_timeout;
        if let Some(arrived) = transport::receive(transport, &mut buffer, wait, &options.stop)?
            && EbHeader::parse(&buffer[..arrived.bytes]).is_ok_and(|header| header.probe_response)
        {
            return Ok(Some(EbLayout::L32));
        }
    }
    Ok((options.probes == 0).then_some(EbLayout::L32))
}
