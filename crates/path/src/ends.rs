//! The ends of the rings that one thread holds: towards the threads before it, and towards those behind.

use daqmeter_harness::Fault;
use daqmeter_sys::memory::{Buffer, Pages};

use crate::account::{Account, Side};
use crate::element::{Block, Label};
use crate::ring::{Closed, Consumer, Found, Producer};

/// Takes blocks from one ring after the other, which gives the order in which they were dealt out. Rings that ended are left out.
pub(crate) struct Inlet {
    rings: Vec<Consumer<Block>>,
    is_open: Vec<bool>,
    /// How many blocks were in each ring when the next was wanted.
    pub(crate) seen: Vec<Vec<u64>>,
    next: usize,
    /// Blocks of each ring.
    buffers: usize,
}

impl Inlet {
    pub(crate) fn new(rings: Vec<Consumer<Block>>, buffers: usize) -> Inlet {
        Inlet {
            is_open: vec![true; rings.len()],
            seen: vec![vec![0; buffers + 1]; rings.len()],
            rings,
            next: 0,
            buffers,
        }
    }

    /// Blocks that may be kept while the next is waited for: one at least must go round.
    pub(crate) fn most_held(&self) -> usize {
        self.buffers - 1
    }

    /// The next block and the ring that it goes back to; none at the end.
    pub(crate) fn next(&mut self, account: &mut Account) -> Option<(usize, Block)> {
        loop {
            let rings = self.rings.len();
            let mut order = (0..rings).map(|step| (self.next + step) % rings);
            let at = order.find(|&at| self.is_open[at])?;
            if let Some(block) = self.of(at, account) {
                self.next = (at + 1) % rings;
                return Some((at, block));
            }
            self.is_open[at] = false;
        }
    }

    fn of(&mut self, at: usize, account: &mut Account) -> Option<Block> {
        let ring = &mut self.rings[at];
        let depth = usize::try_from(ring.depth()).unwrap_or(usize::MAX);
        let block = match ring.try_next() {
            Found::Block(block) => Some(block),
            Found::Closed => None,
            Found::Nothing => account.wait(Side::Input, || ring.wait_next()).ok(),
        }?;
        let last = self.seen[at].len() - 1;
        self.seen[at][depth.min(last)] += 1;
        Some(block)
    }

    pub(crate) fn give_back(&mut self, at: usize, block: Block) {
        self.rings[at].give_back(block);
    }
}

/// Deals blocks out to one ring after the other.
pub(crate) struct Outlet {
    rings: Vec<Producer<Block>>,
    next: usize,
    /// Of the blocks.
    pages: Pages,
}

impl Outlet {
    pub(crate) fn new(rings: Vec<Producer<Block>>, pages: Pages) -> Outlet {
        Outlet { rings, next: 0, pages }
    }

    /// Makes the blocks, in the thread that fills them.
    pub(crate) fn prepare(&mut self, blocks: usize, bytes: usize) -> Result<(), Fault> {
        for ring in &mut self.rings {
            for buffer in Buffer::several(blocks, bytes, self.pages)? {
                if self.pages == Pages::HugeTlb && buffer.pages() != Pages::HugeTlb {
                    return Err(Fault::new(
                        "too few huge pages are reserved for the blocks: set vm.nr_hugepages, or leave out `pages`",
                    ));
                }
                ring.put_in(Block { buffer, label: Label::default() });
            }
        }
        Ok(())
    }

    /// An empty block, if there is one now.
    pub(crate) fn try_empty(&mut self) -> Found<Block> {
        self.rings[self.next].try_empty()
    }

    /// An empty block; none when nobody takes any more.
    pub(crate) fn empty(&mut self, account: &mut Account) -> Option<Block> {
        match self.try_empty() {
            Found::Block(block) => Some(block),
            Found::Closed => None,
            Found::Nothing => {
                let ring = &mut self.rings[self.next];
                account.wait(Side::Output, || ring.wait_empty()).ok()
            }
        }
    }

    pub(crate) fn send(&mut self, block: Block) -> Result<(), Closed> {
        let at = self.next;
        self.next = (at + 1) % self.rings.len();
        self.rings[at].send(block)
    }
}

/// Links two rows of threads: one to one where they are as many, else each of one side with the single one of the other.
pub(crate) fn link(
    producers: usize,
    consumers: usize,
    buffers: usize,
    pages: Pages,
) -> (Vec<Outlet>, Vec<Inlet>) {
    let mut outlets: Vec<Vec<Producer<Block>>> = (0..producers).map(|_| Vec::new()).collect();
    let mut inlets: Vec<Vec<Consumer<Block>>> = (0..consumers).map(|_| Vec::new()).collect();
    for at in 0..producers.max(consumers) {
        let (producer, consumer) = crate::ring::ring(buffers);
        outlets[at % producers].push(producer);
        inlets[at % consumers].push(consumer);
    }
    let inlets = inlets.into_iter();
    (
        outlets.into_iter().map(|rings| Outlet::new(rings, pages)).collect(),
        inlets.map(|rings| Inlet::new(rings, buffers)).collect(),
    )
}
