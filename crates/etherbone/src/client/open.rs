//! How a conversation begins: the probe, and what both sides settle on.

use std::time::Duration;

use daqmeter_sys::clock::monotonic_ns;
use daqmeter_wire::etherbone::cycle::{Op, Space, StatusCheck};
use daqmeter_wire::etherbone::message::PROBE_BYTES;
use daqmeter_wire::etherbone::{EbLayout, EbProbe, Widths, config, litex};

use super::{
    Client, ClientCounts, ClientOptions, CycleOutcome, EbDialect, InFlight, Outgoing, as_ns,
};
use crate::EbError;
use crate::address::Address;
use crate::transport::{self, EbTransport, Framed, Framing, RECEIVE_BYTES};

/// How long a LiteX server on TCP is given to say its banner; others say nothing.
const BANNER_WAIT: Duration = Duration::from_millis(300);

/// How long a server on TCP is given to answer in a framing before the other is tried. One that does not understand closes the
/// connection, or waits for the rest of a record.
const FRAMING_WAIT: Duration = Duration::from_secs(1);

impl Client {
    /// Opens a conversation with the slave at an address.
    ///
    /// # Errors
    /// When the way cannot be opened, nobody answers, or there is no width in common.
    pub fn open(address: &Address, options: &ClientOptions) -> Result<Client, EbError> {
        let name = address.to_string();
        let connect = || transport::open(address, options.dialect, options.probe_timeout);
        if options.dialect == EbDialect::Litex || !matches!(address, Address::Tcp(..)) {
            return Client::over(connect()?, options, &name);
        }
        // Servers on TCP expect bare records, or a header before each message (the C library of 2014). None says which.
        let mut client = Client::over(connect()?, options, &name)?;
        if client.is_understood() {
            return Ok(client);
        }
        drop(client);
        let mut client = Client::over(Box::new(Framed(connect()?)), options, &name)?;
        if client.is_understood() {
            return Ok(client);
        }
        drop(client);
        // Slower than was waited for, perhaps.
        Client::over(connect()?, options, &name)
    }

    /// Whether a read that has no effect is answered: of the error register.
    fn is_understood(&mut self) -> bool {
        let deadline = std::mem::replace(&mut self.options.timeout, FRAMING_WAIT);
        let read = Op { space: Space::Config, ..Op::read(config::ERRORS, self.layout.data) };
        let answered = self.cycle(&[read], StatusCheck::Silent).is_ok();
        self.options.timeout = deadline;
        // It is not one of the cycles of whoever asked for the conversation.
        self.flights.counts = ClientCounts::default();
        answered
    }

    /// Opens a conversation over a transport; the name is for messages.
    ///
    /// # Errors
    /// When nobody answers, or there is no width in common.
    pub fn over(
        mut transport: Box<dyn EbTransport>,
        options: &ClientOptions,
        name: &str,
    ) -> Result<Client, EbError> {
        let layout = match options.dialect {
            EbDialect::Gsi => probe(transport.as_mut(), options, name)?,
            EbDialect::Litex => litex_hello(transport.as_mut(), options, name)?,
        };
        let window_bytes = options.window_bytes.unwrap_or(transport.window_bytes());
        // An answer may be as late as the deadline once more; a second at least.
        let late_ns = as_ns(options.timeout.max(Duration::from_secs(1)));
        Ok(Client {
            framing: transport.framing(),
            transport,
            layout,
            options: options.clone(),
            flights: InFlight::new(options.window_cycles, window_bytes, late_ns),
            outgoing: Outgoing::default(),
            received: vec![0; RECEIVE_BYTES].into_boxed_slice(),
            partial: Vec::new(),
            outcome: CycleOutcome::default(),
            now_ns: monotonic_ns(),
            litex_counter: 0,
        })
    }
}

/// Asks for the slave's widths, as often as allowed.
fn probe(
    transport: &mut dyn EbTransport,
    options: &ClientOptions,
    name: &str,
) -> Result<EbLayout, EbError> {
    if options.probes == 0 {
        return without_probe(transport, options);
    }
    let mut buffer = vec![0; RECEIVE_BYTES];
    let mut heard = Vec::new();
    for attempt in 0..options.probes {
        // An id that an earlier conversation did not use.
        #[allow(clippy::cast_possible_truncation, reason = "any 32 bits do")]
        let id = (monotonic_ns() >> 4) as u32 ^ attempt << 28;
        let probe = EbProbe { response: false, address: options.address, data: options.data, id };
        // A stream carries its probe once: a second one would be taken for a record by the C slave.
        if attempt == 0 || !transport.framing().is_stream() {
            transport.send(&probe.emit(), &[PROBE_BYTES])?;
        }
        let deadline_ns = monotonic_ns() + as_ns(options.probe_timeout);
        loop {
            let left_ns = deadline_ns.saturating_sub(monotonic_ns());
            if left_ns == 0 {
                break;
            }
            let Some(arrived) = transport.receive(&mut buffer, Duration::from_nanos(left_ns))?
            else {
                continue;
            };
            let answer = match transport.framing() {
                Framing::Datagram { .. } => buffer[..arrived.bytes]
                    .chunks(arrived.segment_bytes)
                    .filter_map(|datagram| EbProbe::parse(datagram).ok())
                    .find(|answer| answer.response && answer.id == id),
                Framing::Stream | Framing::Messages { .. } => {
                    heard.extend_from_slice(&buffer[..arrived.bytes]);
                    if heard.len() < PROBE_BYTES {
                        continue;
                    }
                    Some(EbProbe::parse(&heard[..PROBE_BYTES])?).filter(|answer| answer.response)
                }
            };
            if let Some(answer) = answer {
                return settle(options, answer);
            }
        }
    }
    Err(EbError::NoAnswer {
        address: name.to_owned(),
        probes: options.probes,
        each: options.probe_timeout,
    })
}

fn settle(options: &ClientOptions, slave: EbProbe) -> Result<EbLayout, EbError> {
    let common = |ours: Widths, theirs: Widths| ours.and(theirs).widest();
    match (common(options.address, slave.address), common(options.data, slave.data)) {
        (Some(address), Some(data)) => Ok(EbLayout { address, data }),
        _ => Err(EbError::Width {
            our_address: options.address,
            our_data: options.data,
            address: slave.address,
            data: slave.data,
        }),
    }
}

fn without_probe(
    transport: &dyn EbTransport,
    options: &ClientOptions,
) -> Result<EbLayout, EbError> {
    if transport.framing().is_stream() {
        return Err(EbError::Unsupported(
            "a stream begins with a probe: ask for at least one (-r 1)".to_owned(),
        ));
    }
    match (options.address.single(), options.data.single()) {
        (Some(address), Some(data)) => Ok(EbLayout { address, data }),
        _ => Err(EbError::Unsupported(
            "without a probe there must be exactly one address and one data width (-a 32 -d 32 -r 0)".to_owned(),
        )),
    }
}

/// Boards of this dialect answer a probe of their own; servers on TCP say a banner first, or nothing.
fn litex_hello(
    transport: &mut dyn EbTransport,
    options: &ClientOptions,
    name: &str,
) -> Result<EbLayout, EbError> {
    let mut buffer = vec![0; RECEIVE_BYTES];
    if transport.framing().is_stream() {
        // Whatever comes before a request is a banner.
        transport.receive(&mut buffer, BANNER_WAIT)?;
        return Ok(EbLayout::L32);
    }
    for _ in 0..options.probes {
        transport.send(&litex::probe(), &[litex::PROBE_BYTES])?;
        if let Some(arrived) = transport.receive(&mut buffer, options.probe_timeout)?
            && daqmeter_wire::etherbone::EbHeader::parse(&buffer[..arrived.bytes])
                .is_ok_and(|header| header.probe_response)
        {
            return Ok(EbLayout::L32);
        }
    }
    if options.probes == 0 {
        return Ok(EbLayout::L32);
    }
    Err(EbError::NoAnswer {
        address: name.to_owned(),
        probes: options.probes,
        each: options.probe_timeout,
    })
}
