//! Parser of GBNF.

use std::collections::HashMap;

use super::{CharSet, Expr, Result, Rules};

/// Maximum depth of nested groups.
const MAX_DEPTH: usize = 64;
const MAX_RULES: usize = 4096;
const MAX_BYTES: usize = 1 << 18;
/// Maximum repetition operators after one item.
const MAX_OPERATORS: usize = 4;
/// llama.cpp's limit of the product of nested repetitions.
const MAX_REPETITION: u64 = 2000;

pub(super) fn parse(text: &str) -> Result<Rules> {
    if text.len() > MAX_BYTES {
        return Err(format!("longer than {MAX_BYTES} bytes"));
    }
    let mut parser =
        Parser { text, at: 0, indices: HashMap::new(), names: Vec::new(), bodies: Vec::new() };
    parser.skip_space(true);
    while parser.peek().is_some() {
        parser.rule()?;
    }
    let mut bodies = Vec::with_capacity(parser.bodies.len());
    for (body, name) in parser.bodies.into_iter().zip(&parser.names) {
        bodies.push(body.ok_or_else(|| format!("rule `{name}` is used but not defined"))?);
    }
    let root = *parser.indices.get("root").ok_or("there is no rule `root`")?;
    Ok(Rules { names: parser.names, bodies, root })
}

struct Parser<'a> {
    text: &'a str,
    /// Byte offset into `text`.
    at: usize,
    indices: HashMap<&'a str, usize>,
    names: Vec<String>,
    bodies: Vec<Option<Expr>>,
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Option<char> {
        self.text[self.at..].chars().next()
    }

    fn next(&mut self) -> Result<char> {
        let c = self.peek().ok_or_else(|| self.error("more text"))?;
        self.at += c.len_utf8();
        Ok(c)
    }

    fn eat(&mut self, c: char) -> bool {
        let found = self.peek() == Some(c);
        if found {
            self.at += c.len_utf8();
        }
        found
    }

    /// Error message with the line, what was expected and what was found.
    fn error(&self, expected: &str) -> String {
        let line = self.text[..self.at].matches('\n').count() + 1;
        let rest: String = self.text[self.at..].chars().take(20).collect();
        if rest.is_empty() {
            format!("line {line}: expected {expected}, got the end of the text")
        } else {
            format!("line {line}: expected {expected}, got {rest:?}")
        }
    }

    /// Skips blanks and comments; with `lines`, line ends too.
    fn skip_space(&mut self, lines: bool) {
        while let Some(c) = self.peek() {
            match c {
                ' ' | '\t' => self.at += 1,
                '\r' | '\n' if lines => self.at += 1,
                '#' => {
                    let rest = &self.text[self.at..];
                    self.at += rest.find(['\r', '\n']).unwrap_or(rest.len());
                }
                _ => break,
            }
        }
    }

    fn name(&mut self) -> Result<usize> {
        let rest = &self.text[self.at..];
        let word = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        let name = &rest[..rest.find(|c| !word(c)).unwrap_or(rest.len())];
        if name.is_empty() {
            return Err(self.error("a rule's name"));
        }
        self.at += name.len();
        if let Some(&index) = self.indices.get(name) {
            return Ok(index);
        }
        if self.names.len() == MAX_RULES {
            return Err(format!("more than {MAX_RULES} rules"));
        }
        self.indices.insert(name, self.names.len());
        self.names.push(name.to_owned());
        self.bodies.push(None);
        Ok(self.names.len() - 1)
    }

    fn rule(&mut self) -> Result<()> {
        let index = self.name()?;
        self.skip_space(false);
        if !self.text[self.at..].starts_with("::=") {
            return Err(self.error("`::=`"));
        }
        self.at += 3;
        self.skip_space(true);
        let body = self.choice(0)?;
        if !matches!(self.peek(), None | Some('\r' | '\n')) {
            return Err(self.error("the end of the rule"));
        }
        self.bodies[index] = Some(body);
        self.skip_space(true);
        Ok(())
    }

    fn choice(&mut self, depth: usize) -> Result<Expr> {
        if depth > MAX_DEPTH {
            return Err(format!("groups are nested more than {MAX_DEPTH} deep"));
        }
        let mut choices = vec![self.sequence(depth)?];
        while self.eat('|') {
            self.skip_space(true);
            choices.push(self.sequence(depth)?);
        }
        Ok(if choices.len() == 1 { choices.remove(0) } else { Expr::Choice(choices) })
    }

    fn sequence(&mut self, depth: usize) -> Result<Expr> {
        let mut items = Vec::new();
        // Limits nesting such as `a?*+`, over which other code recurses.
        let mut operators = 0;
        while let Some(c) = self.peek() {
            let item = match c {
                '"' => self.string()?,
                '[' => self.class()?,
                '(' => {
                    self.at += 1;
                    self.skip_space(true);
                    let inner = self.choice(depth + 1)?;
                    if !self.eat(')') {
                        return Err(self.error("`)`"));
                    }
                    inner
                }
                '.' => {
                    self.at += 1;
                    Expr::Chars(CharSet::all())
                }
                '<' | '!' => self.token()?,
                '*' | '+' | '?' | '{' => {
                    let inner = items.pop().ok_or_else(|| self.error("an item to repeat"))?;
                    operators += 1;
                    if operators > MAX_OPERATORS {
                        return Err(self.error("fewer repetitions of repetitions"));
                    }
                    self.repetition(inner)?
                }
                c if c.is_ascii_alphanumeric() || c == '-' || c == '_' => Expr::Rule(self.name()?),
                _ => break,
            };
            if !matches!(item, Expr::Repeat { .. }) {
                operators = 0;
            }
            self.skip_space(depth > 0);
            items.push(item);
        }
        Ok(if items.len() == 1 { items.remove(0) } else { Expr::Sequence(items) })
    }

    fn string(&mut self) -> Result<Expr> {
        self.at += 1;
        let mut items = Vec::new();
        while !self.eat('"') {
            let c = u32::from(self.char()?);
            items.push(Expr::Chars(CharSet::new(vec![(c, c)])));
        }
        Ok(if items.len() == 1 { items.remove(0) } else { Expr::Sequence(items) })
    }

    fn class(&mut self) -> Result<Expr> {
        self.at += 1;
        let negated = self.eat('^');
        let mut ranges = Vec::new();
        while !self.eat(']') {
            let low = u32::from(self.char()?);
            let rest = &self.text[self.at..];
            let high = if rest.starts_with('-') && !rest.starts_with("-]") {
                self.at += 1;
                u32::from(self.char()?)
            } else {
                low
            };
            if high < low {
                return Err(self.error("a range in ascending order before this"));
            }
            ranges.push((low, high));
        }
        let set = CharSet::new(ranges);
        Ok(Expr::Chars(if negated { set.complement() } else { set }))
    }

    fn char(&mut self) -> Result<char> {
        let c = self.next()?;
        if c != '\\' {
            return Ok(c);
        }
        match self.next()? {
            'x' => self.hex(2),
            'u' => self.hex(4),
            'U' => self.hex(8),
            't' => Ok('\t'),
            'r' => Ok('\r'),
            'n' => Ok('\n'),
            c @ ('\\' | '"' | '[' | ']') => Ok(c),
            c => Err(self.error(&format!("a known escape instead of `\\{c}` before this"))),
        }
    }

    fn hex(&mut self, digits: usize) -> Result<char> {
        let text = self.text[self.at..].get(..digits);
        let value = text.filter(|text| text.bytes().all(|b| b.is_ascii_hexdigit()));
        let value = value.and_then(|text| u32::from_str_radix(text, 16).ok());
        let c = value.and_then(char::from_u32);
        let c = c.ok_or_else(|| self.error(&format!("{digits} hex digits of a character")))?;
        self.at += digits;
        Ok(c)
    }

    /// Parses a token: `<name>` or `<[id]>`, negated after `!`.
    fn token(&mut self) -> Result<Expr> {
        let negated = self.eat('!');
        let rest = &self.text[self.at..];
        let end = rest.find('>').filter(|_| rest.starts_with('<'));
        let end = end.ok_or_else(|| self.error("a token like `<[12]>` or `<think>`"))?;
        self.at += end + 1;
        Ok(Expr::Token { text: rest[..=end].to_owned(), negated })
    }

    fn repetition(&mut self, inner: Expr) -> Result<Expr> {
        let (min, max) = match self.next()? {
            '*' => (0, None),
            '+' => (1, None),
            '?' => (0, Some(1)),
            _ => {
                self.skip_space(true);
                let min = self.number()?;
                let max = if self.eat(',') {
                    self.skip_space(true);
                    if self.peek() == Some('}') { None } else { Some(self.number()?) }
                } else {
                    Some(min)
                };
                if !self.eat('}') {
                    return Err(self.error("`}`"));
                }
                (min, max)
            }
        };
        if max.is_some_and(|max| max < min) {
            return Err(self.error("a greater end of the repetition before this"));
        }
        let repeat = Expr::Repeat { inner: Box::new(inner), min, max };
        if repeated(&repeat) > MAX_REPETITION {
            return Err(self.error(&format!("at most {MAX_REPETITION} repetitions before this")));
        }
        Ok(repeat)
    }

    fn number(&mut self) -> Result<u32> {
        let rest = &self.text[self.at..];
        let digits = &rest[..rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len())];
        let number = digits.parse().map_err(|_| self.error("a number"))?;
        self.at += digits.len();
        self.skip_space(true);
        Ok(number)
    }
}

/// Product of the nested repetitions in `expr`.
fn repeated(expr: &Expr) -> u64 {
    match expr {
        Expr::Chars(_) | Expr::Token { .. } | Expr::Rule(_) => 1,
        Expr::Sequence(items) | Expr::Choice(items) => {
            items.iter().map(repeated).max().unwrap_or(1)
        }
        Expr::Repeat { inner, min, max } => {
            u64::from(max.unwrap_or(*min).max(1)).saturating_mul(repeated(inner))
        }
    }
}
