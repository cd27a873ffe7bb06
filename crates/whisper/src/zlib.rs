//! Length of a text compressed by zlib at level 6, exactly: thresholds of compression ratios are made for zlib, and other
//! compressors of the format choose other matches and blocks. Texts of a window are shorter than zlib's window of 32 KiB.
//!
//! ```text
//! bytes ──lazy matching──► literals and matches ──Huffman codes──► bits of a block: stored, fixed or dynamic, the fewest
//! ```
//!
//! Source: zlib 1.3 `deflate.c` (`deflate_slow`, `longest_match`) and `trees.c`.

const MIN_MATCH: usize = 3;
const MAX_MATCH: usize = 258;
const HASH_BITS: u32 = 15;
/// Maximum distance of a match: zlib's window without its minimum lookahead.
const MAX_DISTANCE: usize = (1 << 15) - MAX_MATCH - MIN_MATCH - 1;
/// Maximum distance of a match of [`MIN_MATCH`] bytes; literals cost less than farther ones.
const TOO_FAR: usize = 4096;
/// Level 6: a match of this length shortens the search for a longer one, and ends it.
const GOOD_LENGTH: usize = 8;
const MAX_LAZY: usize = 16;
const NICE_LENGTH: usize = 128;
const MAX_CHAIN: usize = 128;
/// Symbols of a block.
const BLOCK_SYMBOLS: usize = (1 << 14) - 1;
/// Header of two bytes, checksum of four.
const FRAME_BYTES: u64 = 6;

const N_LITERALS: usize = 286;
const N_DISTANCES: usize = 30;
const N_BIT_LENGTHS: usize = 19;
/// Longest code of a symbol, and of a code length.
const MAX_CODE_LENGTH: u8 = 15;
const MAX_BIT_LENGTH: u8 = 7;
const END_OF_BLOCK: usize = 256;
const FIRST_LENGTH: usize = 257;
/// Order of the code lengths of the bit length code.
const BIT_LENGTH_ORDER: [usize; N_BIT_LENGTHS] =
    [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15];

/// A literal, or a match of `length` bytes `distance` before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Symbol {
    Literal(u8),
    Match { length: usize, distance: usize },
}

/// Bytes that zlib compresses `data` to, header and checksum included.
pub(crate) fn compressed_len(data: &[u8]) -> usize {
    let symbols = Matcher::new(data).symbols();
    let mut bits = 0;
    // The last block may be empty, as that of no data.
    let n_blocks = symbols.len() / BLOCK_SYMBOLS + 1;
    for index in 0..n_blocks {
        let first = index * BLOCK_SYMBOLS;
        let block = &symbols[first..symbols.len().min(first + BLOCK_SYMBOLS)];
        bits = add_block(bits, block, index + 1 == n_blocks);
    }
    (FRAME_BYTES + bits.div_ceil(8)) as usize
}

/// Finds matches, lazily: one is taken unless a longer one starts at the next byte.
struct Matcher<'a> {
    data: &'a [u8],
    /// Last position of each hash.
    head: Vec<Option<u32>>,
    /// Position before each one with the same hash.
    previous: Vec<Option<u32>>,
}

impl<'a> Matcher<'a> {
    fn new(data: &'a [u8]) -> Self {
        Self { data, head: vec![None; 1 << HASH_BITS], previous: vec![None; data.len()] }
    }

    fn symbols(mut self) -> Vec<Symbol> {
        let data = self.data;
        let mut symbols = Vec::new();
        let (mut at, mut length, mut start) = (0, MIN_MATCH - 1, 0);
        let mut has_pending = false;
        while at < data.len() {
            let candidate = self.insert(at);
            let (previous_length, previous_start) = (length, start);
            length = MIN_MATCH - 1;
            if let Some(candidate) = candidate
                && previous_length < MAX_LAZY
                && candidate > 0
                && at - candidate <= MAX_DISTANCE
            {
                (length, start) = self.longest(at, candidate, previous_length, start);
                if length == MIN_MATCH && at - start > TOO_FAR {
                    length = MIN_MATCH - 1;
                }
            }
            if previous_length >= MIN_MATCH && length <= previous_length {
                let distance = at - 1 - previous_start;
                symbols.push(Symbol::Match { length: previous_length, distance });
                for inside in at + 1..at - 1 + previous_length {
                    self.insert(inside);
                }
                at += previous_length - 1;
                (has_pending, length) = (false, MIN_MATCH - 1);
            } else {
                if has_pending {
                    symbols.push(Symbol::Literal(data[at - 1]));
                }
                has_pending = true;
                at += 1;
            }
        }
        if has_pending {
            symbols.push(Symbol::Literal(data[at - 1]));
        }
        symbols
    }

    /// Adds a position; returns the last one with the same hash of three bytes.
    fn insert(&mut self, at: usize) -> Option<usize> {
        let bytes = self.data.get(at..at + MIN_MATCH)?;
        let hash = bytes.iter().fold(0, |hash, &byte| (hash << 5) ^ usize::from(byte));
        let before = self.head[hash & ((1 << HASH_BITS) - 1)].replace(at as u32);
        self.previous[at] = before;
        before.map(|before| before as usize)
    }

    /// Longest match of `at`, longer than `length`, from `candidate` backwards, and its start.
    fn longest(
        &self,
        at: usize,
        mut candidate: usize,
        length: usize,
        start: usize,
    ) -> (usize, usize) {
        let (data, lookahead) = (self.data, self.data.len() - at);
        // zlib takes position 0 for the end of a chain.
        let limit = at.saturating_sub(MAX_DISTANCE);
        let mut best = (length, start);
        let mut n_left = if length >= GOOD_LENGTH { MAX_CHAIN / 4 } else { MAX_CHAIN };
        let pairs = |from: usize| data[from..].iter().zip(&data[at..]).take(MAX_MATCH);
        loop {
            let equal = pairs(candidate).take_while(|(a, b)| a == b).count();
            if equal > best.0 {
                best = (equal, candidate);
                if equal >= NICE_LENGTH.min(lookahead) {
                    break;
                }
            }
            n_left -= 1;
            match self.previous[candidate] {
                Some(next) if next as usize > limit && n_left > 0 => {
                    candidate = next as usize;
                }
                _ => break,
            }
        }
        (best.0.min(lookahead), best.1)
    }
}

/// Code of a value from 0 on and its extra bits: the first `n_plain` codes have none, then `n_each` codes each one more.
fn code_of(value: usize, n_plain: usize, n_each: usize) -> (usize, u64) {
    let (mut code, mut base, mut extra) = (0, 0, 0);
    loop {
        if value < base + (1 << extra) {
            return (code, extra);
        }
        base += 1 << extra;
        code += 1;
        if code >= n_plain && (code - n_plain).is_multiple_of(n_each) {
            extra += 1;
        }
    }
}

/// Code of a match length and its extra bits.
fn length_code(length: usize) -> (usize, u64) {
    if length == MAX_MATCH { (28, 0) } else { code_of(length - MIN_MATCH, 8, 4) }
}

/// Code of a distance and its extra bits.
fn distance_code(distance: usize) -> (usize, u64) {
    code_of(distance - 1, 4, 2)
}

/// Bits after a block that starts at bit `at`.
fn add_block(at: u64, symbols: &[Symbol], is_last: bool) -> u64 {
    let mut literals = [0u32; N_LITERALS];
    let mut distances = [0u32; N_DISTANCES];
    let (mut extra, mut n_bytes) = (0, 0);
    literals[END_OF_BLOCK] = 1;
    for symbol in symbols {
        match *symbol {
            Symbol::Literal(byte) => {
                literals[usize::from(byte)] += 1;
                n_bytes += 1;
            }
            Symbol::Match { length, distance } => {
                let ((length_code, length_extra), (distance_code, distance_extra)) =
                    (length_code(length), distance_code(distance));
                literals[FIRST_LENGTH + length_code] += 1;
                distances[distance_code] += 1;
                extra += length_extra + distance_extra;
                n_bytes += length as u64;
            }
        }
    }
    let literal_lengths = code_lengths(&literals, MAX_CODE_LENGTH);
    let distance_lengths = code_lengths(&distances, MAX_CODE_LENGTH);
    let header = header_bits(&literal_lengths, &distance_lengths);
    let total = |counts: &[u32], lengths: &[u8]| -> u64 {
        counts.iter().zip(lengths).map(|(&n, &bits)| u64::from(n) * u64::from(bits)).sum()
    };
    let dynamic_bits =
        header + extra + total(&literals, &literal_lengths) + total(&distances, &distance_lengths);
    let fixed_bits =
        extra + total(&literals, &fixed_literal_lengths()) + total(&distances, &[5; N_DISTANCES]);
    // Whole bytes are compared, with the three bits of the block's header.
    let dynamic_bytes = (dynamic_bits + 3).div_ceil(8);
    let fixed_bytes = (fixed_bits + 3).div_ceil(8);
    let best = dynamic_bytes.min(fixed_bytes);
    let end = if n_bytes + 4 <= best {
        ((at + 3).div_ceil(8) + 4 + n_bytes) * 8
    } else if fixed_bytes == best {
        at + 3 + fixed_bits
    } else {
        at + 3 + dynamic_bits
    };
    if is_last { end.div_ceil(8) * 8 } else { end }
}

fn fixed_literal_lengths() -> [u8; N_LITERALS] {
    let mut lengths = [8; N_LITERALS];
    lengths[144..256].fill(9);
    lengths[256..280].fill(7);
    lengths
}

/// Bits of the code lengths of a dynamic block.
fn header_bits(literal_lengths: &[u8], distance_lengths: &[u8]) -> u64 {
    let used = |lengths: &[u8]| lengths.iter().rposition(|&bits| bits > 0).map_or(1, |at| at + 1);
    let mut counts = [0u32; N_BIT_LENGTHS];
    let mut extra = 0;
    for lengths in [literal_lengths, distance_lengths] {
        extra += count_runs(&lengths[..used(lengths)], &mut counts);
    }
    let lengths = code_lengths(&counts, MAX_BIT_LENGTH);
    let n_sent = BIT_LENGTH_ORDER.iter().rposition(|&code| lengths[code] > 0).unwrap_or(0).max(3);
    let coded: u64 =
        counts.iter().zip(&lengths).map(|(&n, &bits)| u64::from(n) * u64::from(bits)).sum();
    coded + extra + 3 * (n_sent as u64 + 1) + 14
}

/// Counts the symbols of the run-length code of `lengths`; returns their extra bits (zlib `scan_tree`).
fn count_runs(lengths: &[u8], counts: &mut [u32; N_BIT_LENGTHS]) -> u64 {
    let mut extra = 0;
    let mut previous = None;
    let mut run = 0;
    let (mut max_run, mut min_run) = if lengths[0] == 0 { (138, 3) } else { (7, 4) };
    for (i, &length) in lengths.iter().enumerate() {
        let next = lengths.get(i + 1).copied();
        run += 1;
        if run < max_run && next == Some(length) {
            continue;
        }
        if run < min_run {
            counts[usize::from(length)] += run;
        } else if length != 0 {
            if previous != Some(length) {
                counts[usize::from(length)] += 1;
            }
            counts[16] += 1;
            extra += 2;
        } else if run <= 10 {
            counts[17] += 1;
            extra += 3;
        } else {
            counts[18] += 1;
            extra += 7;
        }
        run = 0;
        previous = Some(length);
        (max_run, min_run) = match next {
            Some(0) => (138, 3),
            Some(next) if next == length => (6, 3),
            _ => (7, 4),
        };
    }
    extra
}

/// Lengths of the Huffman codes of symbols that occur `counts` times, at most `max_length` bits (zlib `build_tree` and
/// `gen_bitlen`).
fn code_lengths(counts: &[u32], max_length: u8) -> Vec<u8> {
    let tree = HuffmanTree::new(counts);
    let mut lengths = vec![0u8; tree.parents.len()];
    let mut n_of_length = vec![0usize; usize::from(max_length) + 1];
    let mut n_too_long = 0;
    // The root comes first.
    for &node in tree.order.iter().rev().skip(1) {
        let length = lengths[tree.parents[node]] + 1;
        n_too_long += usize::from(length > max_length);
        lengths[node] = length.min(max_length);
        if node < counts.len() {
            n_of_length[usize::from(lengths[node])] += 1;
        }
    }
    lengths.truncate(counts.len());
    if n_too_long > 0 {
        shorten(&mut n_of_length, n_too_long);
        // The rarest symbols get the longest codes.
        let mut leaves = tree.order.iter().filter(|&&node| node < counts.len());
        for (length, &n) in n_of_length.iter().enumerate().rev() {
            leaves.by_ref().take(n).for_each(|&node| lengths[node] = length as u8);
        }
    }
    lengths
}

/// Makes room for nodes below the maximum length: moves leaves one level down until all fit.
fn shorten(n_of_length: &mut [usize], n_too_long: usize) {
    let max_length = n_of_length.len() - 1;
    for _ in 0..n_too_long.div_ceil(2) {
        let shorter = (0..max_length).rev().find(|&length| n_of_length[length] > 0).unwrap_or(0);
        n_of_length[shorter] -= 1;
        n_of_length[shorter + 1] += 2;
        n_of_length[max_length] -= 1;
    }
}

/// Nodes of a Huffman tree: the symbols, then the inner nodes.
struct HuffmanTree {
    parents: Vec<usize>,
    /// Nodes in the order in which they were joined, the rarest first, the root last.
    order: Vec<usize>,
}

impl HuffmanTree {
    fn new(counts: &[u32]) -> Self {
        let n_leaves = counts.len();
        // Count and depth of the subtree.
        let mut keys: Vec<(u32, u32)> = counts.iter().map(|&n| (n, 0)).collect();
        let mut heap = Heap((0..n_leaves).filter(|&symbol| counts[symbol] > 0).collect());
        // A code has two symbols at least.
        while heap.0.len() < 2 {
            let symbol = match heap.0.iter().max() {
                None => 0,
                Some(&last) if last < 2 => last + 1,
                Some(_) => 0,
            };
            heap.0.push(symbol);
            keys[symbol] = (1, 0);
        }
        for place in (0..heap.0.len() / 2).rev() {
            heap.sift_down(place, &keys);
        }
        let (mut parents, mut order) = (vec![0; n_leaves], Vec::with_capacity(2 * n_leaves));
        while let [first, .., last] = heap.0[..] {
            heap.0.pop();
            heap.0[0] = last;
            heap.sift_down(0, &keys);
            let second = heap.0[0];
            let node = keys.len();
            let ((n, depth), (other_n, other_depth)) = (keys[first], keys[second]);
            keys.push((n + other_n, depth.max(other_depth) + 1));
            parents.push(0);
            (parents[first], parents[second]) = (node, node);
            order.extend([first, second]);
            heap.0[0] = node;
            heap.sift_down(0, &keys);
        }
        order.extend(&heap.0);
        Self { parents, order }
    }
}

/// Binary heap of nodes; zlib's, since the order of equals decides on the lengths of single codes.
struct Heap(Vec<usize>);

impl Heap {
    fn sift_down(&mut self, mut place: usize, keys: &[(u32, u32)]) {
        let Self(nodes) = self;
        let node = nodes[place];
        loop {
            let mut child = 2 * place + 1;
            if child >= nodes.len() {
                break;
            }
            if child + 1 < nodes.len() && keys[nodes[child + 1]] <= keys[nodes[child]] {
                child += 1;
            }
            if keys[node] <= keys[nodes[child]] {
                break;
            }
            nodes[place] = nodes[child];
            place = child;
        }
        nodes[place] = node;
    }
}

#[cfg(test)]
mod tests {
    use super::compressed_len;

    fn next(x: &mut u32) -> u32 {
        *x = x.wrapping_mul(1_103_515_245).wrapping_add(12_345) & 0x7fff_ffff;
        *x
    }

    /// Words of a vocabulary, chosen by a generator.
    fn words(mut seed: u32, n_words: usize, n_vocabulary: u32) -> String {
        let word = |_| {
            let w = (next(&mut seed) >> 16) % n_vocabulary;
            let letter = |k| char::from(97 + ((w * 7 + k * k * 3 + w / (k + 1)) % 26) as u8);
            (0..=w % 9).map(letter).collect::<String>()
        };
        (0..n_words).map(word).collect::<Vec<_>>().join(" ")
    }

    /// Expected values are `len(zlib.compress(data))` of Python 3.11 with zlib 1.2.13.
    #[test]
    fn lengths_are_those_of_zlib() {
        for (text, expected) in [
            (String::new(), 8),
            ("a".to_owned(), 9),
            (" I'm sorry,".repeat(8).trim().to_owned(), 22),
            ("Thank you. ".repeat(9).trim().to_owned(), 22),
            ("ha".repeat(40), 13),
            ("The quick brown fox jumps over the lazy dog.".to_owned(), 51),
            (". ".repeat(30), 13),
            ("。".repeat(50), 14),
            ("謝謝大家。".repeat(12), 28),
            ("a".repeat(1000), 17),
            ("abc".repeat(3), 13),
            (words(1, 5, 50), 38),
            (words(2, 20, 7), 57),
            (words(3, 60, 500), 242),
            (words(4, 200, 40), 418),
            (words(5, 200, 3000), 740),
            (words(6, 900, 300), 2214),
            (words(7, 4000, 2000), 10_262),
            (words(8, 30, 3), 36),
            (words(9, 224, 26), 397),
        ] {
            assert_eq!(compressed_len(text.as_bytes()), expected, "{text:.80}");
        }
        let bytes: Vec<u8> = (0..3000u32).map(|i| (i * i * 7 + i / 3) as u8).collect();
        assert_eq!(compressed_len(&bytes), 843);
    }

    /// Counts that grow as Fibonacci's numbers give the deepest tree, past the longest code.
    #[test]
    fn codes_are_limited_in_length_as_by_zlib() {
        let counts = [1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 377, 610, 987, 1597, 2584];
        let letters = counts.iter().zip(b'a'..);
        let mut bytes: Vec<u8> =
            letters.flat_map(|(&n, letter)| std::iter::repeat_n(letter, n)).collect();
        let mut seed = 1;
        for i in (1..bytes.len()).rev() {
            bytes.swap(i, (next(&mut seed) >> 8) as usize % (i + 1));
        }
        assert_eq!(compressed_len(&bytes), 2732);
    }
}
