//! Reads words from left to right and writes the numbers among them in digits.

use unicode_general_category::{GeneralCategory, get_general_category};

use super::super::pattern::Pattern;
use super::vocabulary::{Role, Vocabulary};

/// Signs and currencies that stand before digits.
const PREFIXES: &str = "-+£€$¢";

/// A number being read.
#[derive(Debug, Clone)]
enum Value {
    /// One to calculate with. Larger than any number with a name, so sums and products of
    /// names fit; digits that do not fit stay text.
    Int(u128),
    /// Digits to append to: decimals, and digits said one by one.
    Digits(String),
}

impl Value {
    fn digits(&self) -> String {
        match self {
            Self::Int(n) => n.to_string(),
            Self::Digits(digits) => digits.clone(),
        }
    }
}

/// State of one pass over a text.
#[derive(Debug)]
pub(super) struct Reader<'v> {
    vocabulary: &'v Vocabulary,
    numeric: &'v Pattern,
    out: Vec<String>,
    prefix: Option<char>,
    value: Option<Value>,
}

/// A word's neighbours.
#[derive(Debug, Clone, Copy)]
struct Neighbours<'t> {
    prev: Option<Role>,
    next: Option<&'t str>,
    next_role: Option<Role>,
    next_is_numeric: bool,
}

impl<'v> Reader<'v> {
    pub(super) fn new(vocabulary: &'v Vocabulary, numeric: &'v Pattern) -> Self {
        Self { vocabulary, numeric, out: Vec::new(), prefix: None, value: None }
    }

    pub(super) fn read(mut self, words: &[&str]) -> Vec<String> {
        let mut i = 0;
        while i < words.len() {
            let role_at = |i: usize| words.get(i).and_then(|word| self.vocabulary.role(word));
            let around = Neighbours {
                prev: i.checked_sub(1).and_then(role_at),
                next: words.get(i + 1).copied(),
                next_role: role_at(i + 1),
                next_is_numeric: words.get(i + 1).is_some_and(|word| self.numeric.is_match(word)),
            };
            let used_next = self.word(words[i], around);
            i += 1 + usize::from(used_next);
        }
        self.emit_value();
        self.out
    }

    /// Reads one word; true if the next word was used, too.
    fn word(&mut self, word: &str, around: Neighbours<'_>) -> bool {
        let prefix = word.chars().next().filter(|&c| PREFIXES.contains(c));
        let unsigned = &word[prefix.map_or(0, char::len_utf8)..];
        if self.numeric.is_match(unsigned) {
            self.numeral(word, unsigned, prefix);
            return false;
        }
        match self.vocabulary.role(word) {
            None => self.emit_value_and(word),
            Some(Role::Zero) => self.append("0"),
            Some(Role::Ones(ones)) => self.value = Some(self.with_ones(ones, around.prev)),
            Some(Role::OnesSuffixed(ones, suffix)) => {
                let number = self.with_ones(ones, around.prev).digits();
                self.emit(&(number + suffix));
            }
            Some(Role::Tens(tens)) => self.value = Some(self.with_tens(tens)),
            Some(Role::TensSuffixed(tens, suffix)) => {
                let number = self.with_tens(tens).digits();
                self.emit(&(number + suffix));
            }
            Some(Role::Multiplier(multiplier)) => {
                let product = self.times(multiplier);
                self.value = Some(Value::Int(product));
            }
            Some(Role::MultiplierSuffixed(multiplier, suffix)) => {
                let product = self.times(multiplier);
                self.emit(&format!("{product}{suffix}"));
            }
            Some(Role::Sign(sign)) => {
                self.emit_value();
                if around.next_role.is_some() || around.next_is_numeric {
                    self.prefix = Some(sign);
                } else {
                    self.emit(word);
                }
            }
            Some(Role::Currency(symbol)) => {
                if self.value.is_some() {
                    self.prefix = Some(symbol);
                    self.emit_value();
                } else {
                    self.emit(word);
                }
            }
            Some(Role::Percent) => return self.percent(word, false),
            Some(Role::Per) if around.next == Some("cent") && self.value.is_some() => {
                return self.percent(word, true);
            }
            Some(Role::Per) => self.emit_value_and(word),
            Some(role @ (Role::And | Role::Repeat(_) | Role::Point)) => {
                return self.connective(word, role, around);
            }
        }
        false
    }

    /// Digits, perhaps with a sign or a currency.
    fn numeral(&mut self, word: &str, unsigned: &str, prefix: Option<char>) {
        if let Some(Value::Digits(digits)) = &mut self.value
            && digits.ends_with('.')
        {
            // Decimals, or the parts of a network address.
            digits.push_str(word);
            return;
        }
        self.emit_value();
        self.prefix = prefix.or(self.prefix);
        self.value = Some(match times_decimal(unsigned, 1) {
            Some(integer) => Value::Int(integer),
            None => Value::Digits(unsigned.to_owned()),
        });
    }

    /// Words that matter only between numbers.
    fn connective(&mut self, word: &str, role: Role, around: Neighbours<'_>) -> bool {
        let before_number = around.next_role.is_some() || around.next_is_numeric;
        match (role, around.next_role) {
            _ if !before_number => self.emit_value_and(word),
            (Role::And, _) => {
                // "two hundred and five": nothing to write.
                if !matches!(around.prev, Some(Role::Multiplier(_))) {
                    self.emit_value_and(word);
                }
            }
            (Role::Repeat(times), Some(Role::Zero)) => {
                self.append(&"0".repeat(times));
                return true;
            }
            (Role::Repeat(times), Some(Role::Ones(ones))) => {
                self.append(&ones.to_string().repeat(times));
                return true;
            }
            (Role::Point, Some(Role::Zero | Role::Ones(_) | Role::Tens(_))) => self.append("."),
            (Role::Point, _) if around.next_is_numeric => self.append("."),
            (Role::Point, _) => {}
            _ => self.emit_value_and(word),
        }
        false
    }

    fn percent(&mut self, word: &str, used_next: bool) -> bool {
        match self.value.take() {
            Some(value) => self.emit(&(value.digits() + "%")),
            None => self.emit(word),
        }
        used_next
    }

    /// The value after `ones` (1 to 19) is said.
    fn with_ones(&self, ones: u128, prev: Option<Role>) -> Value {
        match &self.value {
            None => Value::Int(ones),
            // "nineteen fifty one": the zero gives way.
            Some(Value::Digits(digits)) if matches!(prev, Some(Role::Tens(_))) && ones < 10 => {
                let kept = digits.strip_suffix('0').unwrap_or(digits);
                Value::Digits(format!("{kept}{ones}"))
            }
            Some(Value::Int(n)) if !matches!(prev, Some(Role::Ones(_))) => {
                let room = if ones < 10 { 10 } else { 100 };
                add_or_append(*n, ones, room)
            }
            Some(value) => Value::Digits(format!("{}{ones}", value.digits())),
        }
    }

    /// The value after `tens` (20 to 90) is said.
    fn with_tens(&self, tens: u128) -> Value {
        match &self.value {
            None => Value::Int(tens),
            Some(Value::Digits(digits)) => Value::Digits(format!("{digits}{tens}")),
            Some(Value::Int(n)) => add_or_append(*n, tens, 100),
        }
    }

    /// The number after `multiplier` is said; a value that cannot be multiplied is written first.
    fn times(&mut self, multiplier: u128) -> u128 {
        match &self.value {
            None => multiplier,
            Some(Value::Int(n)) => {
                // "three thousand two hundred": only what follows the thousands is multiplied.
                let (thousands, rest) = (n / 1000 * 1000, n % 1000);
                thousands.saturating_add(rest.saturating_mul(multiplier))
            }
            Some(Value::Digits(digits)) => match times_decimal(digits, multiplier) {
                Some(product) => product,
                None => {
                    self.emit_value();
                    multiplier
                }
            },
        }
    }

    fn append(&mut self, digits: &str) {
        let before = match &self.value {
            None | Some(Value::Int(0)) => String::new(),
            Some(value) => value.digits(),
        };
        self.value = Some(Value::Digits(before + digits));
    }

    fn emit(&mut self, result: &str) {
        let prefix = self.prefix.take().map_or_else(String::new, String::from);
        self.out.push(prefix + result);
        self.value = None;
    }

    fn emit_value(&mut self) {
        if let Some(value) = self.value.take() {
            self.emit(&value.digits());
        }
    }

    fn emit_value_and(&mut self, word: &str) {
        self.emit_value();
        self.emit(word);
    }
}

/// `n + part` where `n` has room for it ("twenty" and "one"), else the digits one after another.
fn add_or_append(n: u128, part: u128, room: u128) -> Value {
    if n.is_multiple_of(room) {
        Value::Int(n.saturating_add(part))
    } else {
        Value::Digits(format!("{n}{part}"))
    }
}

/// `decimal * factor` if it is an integer: `3.5` times 1000 is 3500. `None` also for text with
/// several points, and beyond 128 bits.
fn times_decimal(decimal: &str, factor: u128) -> Option<u128> {
    let (integer, fraction) = decimal.split_once('.').unwrap_or((decimal, ""));
    if integer.is_empty() && fraction.is_empty() {
        return None;
    }
    let fraction = fraction.trim_end_matches('0');
    let digits = integer
        .chars()
        .chain(fraction.chars())
        .try_fold(0_u128, |n, c| n.checked_mul(10)?.checked_add(u128::from(digit(c)?)))?;
    let product = digits.checked_mul(factor)?;
    let scale = 10_u128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    product.is_multiple_of(scale).then(|| product / scale)
}

/// The value of a decimal digit of any script.
fn digit(c: char) -> Option<u32> {
    if c.is_ascii() {
        return c.to_digit(10);
    }
    let is_digit = |code: u32| {
        let category = char::from_u32(code).map(get_general_category);
        category == Some(GeneralCategory::DecimalNumber)
    };
    let code = u32::from(c);
    // Unicode encodes the digits of a script in a row from zero to nine.
    is_digit(code).then(|| (1..).take_while(|&n| is_digit(code - n)).count() as u32 % 10)
}
