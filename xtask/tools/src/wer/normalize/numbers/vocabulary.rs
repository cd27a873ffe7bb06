//! The words that numbers are made of.

use std::collections::HashMap;

const ONES: [&str; 19] = [
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
];
const TENS: [&str; 8] =
    ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"];
/// Each a thousand times the one before, from 1000.
const POWERS: [&str; 11] = [
    "thousand",
    "million",
    "billion",
    "trillion",
    "quadrillion",
    "quintillion",
    "sextillion",
    "septillion",
    "octillion",
    "nonillion",
    "decillion",
];

/// The part that a word plays in a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Zero,
    /// 1 to 19.
    Ones(u128),
    /// `thirds`, `third`: the number and the suffix after its digits.
    OnesSuffixed(u128, &'static str),
    /// 20 to 90.
    Tens(u128),
    TensSuffixed(u128, &'static str),
    Multiplier(u128),
    MultiplierSuffixed(u128, &'static str),
    /// A sign, before the number.
    Sign(char),
    /// A currency, said after the number and written before it.
    Currency(char),
    /// `percent`, or the first word of `per cent`.
    Percent,
    Per,
    And,
    /// `double` 2, `triple` 3.
    Repeat(usize),
    Point,
}

/// Every word of numbers with its role.
#[derive(Debug)]
pub(super) struct Vocabulary(HashMap<String, Role>);

impl Vocabulary {
    pub(super) fn new() -> Self {
        let mut words = HashMap::new();
        for zero in ["o", "oh", "zero"] {
            words.insert(zero.to_owned(), Role::Zero);
        }
        for (name, value) in ONES.into_iter().zip(1..) {
            words.insert(name.to_owned(), Role::Ones(value));
            let plural = if name == "six" { "sixes".to_owned() } else { format!("{name}s") };
            words.insert(plural, Role::OnesSuffixed(value, "s"));
            if value > 3 && value != 5 && value != 12 {
                let suffix = if name.ends_with('t') { "h" } else { "th" };
                words.insert(format!("{name}{suffix}"), Role::OnesSuffixed(value, "th"));
            }
        }
        let irregular = [
            ("zeroth", 0, "th"),
            ("first", 1, "st"),
            ("second", 2, "nd"),
            ("third", 3, "rd"),
            ("fifth", 5, "th"),
            ("twelfth", 12, "th"),
        ];
        for (name, value, suffix) in irregular {
            words.insert(name.to_owned(), Role::OnesSuffixed(value, suffix));
        }
        for (name, tens) in TENS.into_iter().zip(2..) {
            words.insert(name.to_owned(), Role::Tens(tens * 10));
            words.insert(name.replace('y', "ies"), Role::TensSuffixed(tens * 10, "s"));
            words.insert(name.replace('y', "ieth"), Role::TensSuffixed(tens * 10, "th"));
        }
        let powers = POWERS.into_iter().zip(1..).map(|(name, n)| (name, 1000_u128.pow(n)));
        for (name, value) in powers.chain([("hundred", 100)]) {
            words.insert(name.to_owned(), Role::Multiplier(value));
            words.insert(format!("{name}s"), Role::MultiplierSuffixed(value, "s"));
            words.insert(format!("{name}th"), Role::MultiplierSuffixed(value, "th"));
        }
        let others = [
            ("minus", Role::Sign('-')),
            ("negative", Role::Sign('-')),
            ("plus", Role::Sign('+')),
            ("positive", Role::Sign('+')),
            ("pound", Role::Currency('£')),
            ("pounds", Role::Currency('£')),
            ("euro", Role::Currency('€')),
            ("euros", Role::Currency('€')),
            ("dollar", Role::Currency('$')),
            ("dollars", Role::Currency('$')),
            ("cent", Role::Currency('¢')),
            ("cents", Role::Currency('¢')),
            ("per", Role::Per),
            ("percent", Role::Percent),
            ("and", Role::And),
            ("double", Role::Repeat(2)),
            ("triple", Role::Repeat(3)),
            ("point", Role::Point),
        ];
        words.extend(others.map(|(name, role)| (name.to_owned(), role)));
        Self(words)
    }

    pub(super) fn role(&self, word: &str) -> Option<Role> {
        self.0.get(word).copied()
    }

    pub(super) fn multiplier(&self, word: &str) -> Option<u128> {
        match self.role(word) {
            Some(Role::Multiplier(value)) => Some(value),
            _ => None,
        }
    }

    /// Whether the word can follow a decimal point.
    pub(super) fn is_decimal(&self, word: &str) -> bool {
        matches!(self.role(word), Some(Role::Zero | Role::Ones(_) | Role::Tens(_)))
    }
}
