//! The E-links of a file, by their numbers.

use daqmeter_wire::felix::Elink;

use super::elink::ElinkCheck;

const NOWHERE: u16 = u16::MAX;

#[derive(Debug)]
pub(super) struct Elinks {
    places: Box<[u16]>,
    all: Vec<(u16, ElinkCheck)>,
}

impl Elinks {
    pub(super) fn new() -> Elinks {
        Elinks { places: vec![NOWHERE; usize::from(Elink::MOST) + 1].into(), all: Vec::new() }
    }

    pub(super) fn get_mut(&mut self, elink: Elink) -> Option<&mut ElinkCheck> {
        let place = self.places[usize::from(elink.number())];
        self.all.get_mut(usize::from(place)).map(|(_, check)| check)
    }

    #[inline]
    pub(super) fn of(&mut self, elink: Elink) -> &mut ElinkCheck {
        let place = &mut self.places[usize::from(elink.number())];
        if *place == NOWHERE {
            *place = u16::try_from(self.all.len()).expect("as many as there are numbers");
            self.all.push((elink.number(), ElinkCheck::new(elink)));
        }
        &mut self.all[usize::from(*place)].1
    }

    /// Takes the E-links of others, which are disjoint from these.
    pub(super) fn extend(&mut self, others: Elinks) {
        for (number, check) in others.all {
            self.places[usize::from(number)] = u16::try_from(self.all.len()).expect("as above");
            self.all.push((number, check));
        }
    }

    pub(super) fn sorted(&self) -> Vec<(u16, &ElinkCheck)> {
        let mut all: Vec<_> = self.all.iter().map(|(number, one)| (*number, one)).collect();
        all.sort_by_key(|(number, _)| *number);
        all
    }
}
