//! FIRST and FOLLOW sets of the rules, left recursion, and repetitions that a lexer can match.

use super::{CharSet, Expr, Result, Rules};

/// Maximum iterations of a fixed-point computation.
const MAX_ROUNDS: usize = 100;

/// Facts about a grammar's rules, by index.
#[derive(Debug)]
pub(super) struct Analysis {
    nullable: Vec<bool>,
    first: Vec<CharSet>,
    follow: Vec<CharSet>,
    /// Rules whose repetitions must be matched character by character.
    pub(super) by_character: Vec<bool>,
    /// Recursive rules.
    pub(super) recursive: Vec<bool>,
}

impl Analysis {
    /// Analyses the rules; left recursion is an error.
    pub(super) fn new(rules: &Rules) -> Result<Self> {
        let n = rules.bodies.len();
        let mut new = Self {
            nullable: vec![false; n],
            first: vec![CharSet::default(); n],
            follow: vec![CharSet::default(); n],
            by_character: vec![false; n],
            recursive: vec![false; n],
        };
        new.fix_point(n, |new, i| {
            let was = std::mem::replace(&mut new.nullable[i], false);
            new.nullable[i] = was || new.nullable(&rules.bodies[i]);
            new.nullable[i] != was
        })?;
        new.refuse_left_recursion(rules)?;
        new.fix_point(n, |new, i| {
            let first = new.first(&rules.bodies[i]);
            new.first[i].extend(&first)
        })?;
        new.fix_point(n, |new, i| {
            let follow = new.follow[i].clone();
            new.spread_follow(&rules.bodies[i], &follow)
        })?;
        new.recursive = (0..n).map(|i| reaches(rules, &rules.bodies[i])[i]).collect();
        for i in 0..n {
            let follow = new.follow[i].clone();
            new.find_conflicts(rules, i, &rules.bodies[i], &follow);
        }
        Ok(new)
    }

    /// Calls `update` for every rule until it changes none.
    fn fix_point(&mut self, n: usize, update: impl Fn(&mut Self, usize) -> bool) -> Result<()> {
        // Most grammars need a few rounds; hostile ones need as many as they have rules.
        for _ in 0..MAX_ROUNDS {
            // Both directions: chains of rules may be in either order.
            let forwards = (0..n).fold(false, |changed, i| update(self, i) | changed);
            if !forwards || !(0..n).rev().fold(false, |changed, i| update(self, i) | changed) {
                return Ok(());
            }
        }
        Err("the rules depend on each other in too many ways".to_owned())
    }

    fn nullable(&self, expr: &Expr) -> bool {
        match expr {
            Expr::Chars(_) | Expr::Token { .. } => false,
            Expr::Rule(rule) => self.nullable[*rule],
            Expr::Sequence(items) => items.iter().all(|item| self.nullable(item)),
            Expr::Choice(choices) => choices.iter().any(|choice| self.nullable(choice)),
            Expr::Repeat { inner, min, .. } => *min == 0 || self.nullable(inner),
        }
    }

    /// FIRST set: the characters that a match may start with.
    fn first(&self, expr: &Expr) -> CharSet {
        let mut first = CharSet::default();
        match expr {
            Expr::Chars(set) => return set.clone(),
            Expr::Token { .. } => {}
            Expr::Rule(rule) => return self.first[*rule].clone(),
            Expr::Sequence(items) => {
                for item in items {
                    first.extend(&self.first(item));
                    if !self.nullable(item) {
                        break;
                    }
                }
            }
            Expr::Choice(choices) => {
                choices.iter().for_each(|choice| _ = first.extend(&self.first(choice)));
            }
            Expr::Repeat { inner, .. } => return self.first(inner),
        }
        first
    }

    /// Calls `visit` with each direct subexpression and its FOLLOW set.
    fn parts<'a>(
        &self,
        expr: &'a Expr,
        follow: &CharSet,
        mut visit: impl FnMut(&'a Expr, &CharSet),
    ) {
        match expr {
            Expr::Chars(_) | Expr::Token { .. } | Expr::Rule(_) => {}
            Expr::Sequence(items) => {
                let mut follow = follow.clone();
                for item in items.iter().rev() {
                    visit(item, &follow);
                    let mut before = self.first(item);
                    if self.nullable(item) {
                        before.extend(&follow);
                    }
                    follow = before;
                }
            }
            Expr::Choice(choices) => choices.iter().for_each(|choice| visit(choice, follow)),
            Expr::Repeat { inner, max, .. } => {
                let mut follow = follow.clone();
                if *max != Some(1) {
                    follow.extend(&self.first(inner));
                }
                visit(inner, &follow);
            }
        }
    }

    /// Extends the FOLLOW sets of the rules referenced by `expr`. Returns whether any grew.
    fn spread_follow(&mut self, expr: &Expr, follow: &CharSet) -> bool {
        if let Expr::Rule(rule) = expr {
            return self.follow[*rule].extend(follow);
        }
        let mut parts = Vec::new();
        self.parts(expr, follow, |part, follow| parts.push((part, follow.clone())));
        parts
            .into_iter()
            .fold(false, |grew, (part, follow)| self.spread_follow(part, &follow) | grew)
    }

    /// Marks rules that are not LL(1): a lexer, which takes the longest match, could consume characters that another
    /// parse needs.
    fn find_conflicts(&mut self, rules: &Rules, rule: usize, expr: &Expr, follow: &CharSet) {
        match expr {
            Expr::Repeat { inner, min, max }
                if *max != Some(*min)
                    && (self.first(inner).intersects(follow) || self.nullable(inner)) =>
            {
                self.by_character.fill(true);
            }
            Expr::Choice(choices) => {
                let mut seen = CharSet::default();
                let mut conflict = false;
                for choice in choices {
                    let mut select = self.first(choice);
                    if self.nullable(choice) {
                        select.extend(follow);
                    }
                    conflict |= seen.intersects(&select);
                    seen.extend(&select);
                }
                if conflict {
                    self.mark_choice(rules, rule, expr, follow);
                }
            }
            _ => {}
        }
        let mut parts = Vec::new();
        self.parts(expr, follow, |part, follow| parts.push((part, follow.clone())));
        for (part, follow) in parts {
            self.find_conflicts(rules, rule, part, &follow);
        }
    }

    /// Marks the rules reachable from an ambiguous choice; all rules if its characters may also follow it.
    fn mark_choice(&mut self, rules: &Rules, rule: usize, choice: &Expr, follow: &CharSet) {
        let reached = reaches(rules, choice);
        let mut alphabet = CharSet::default();
        add_alphabet(choice, &mut alphabet);
        for (i, _) in reached.iter().enumerate().filter(|(_, reached)| **reached) {
            add_alphabet(&rules.bodies[i], &mut alphabet);
            self.by_character[i] = true;
        }
        self.by_character[rule] = true;
        if alphabet.intersects(follow) {
            self.by_character.fill(true);
        }
    }

    fn refuse_left_recursion(&self, rules: &Rules) -> Result<()> {
        let n = rules.bodies.len();
        // Depth-first search: 0 unvisited, 1 on the path, 2 done. An explicit stack, since grammars may be hostile.
        let mut state = vec![0u8; n];
        for start in 0..n {
            let mut path = vec![(start, false)];
            while let Some((rule, left)) = path.pop() {
                if left {
                    state[rule] = 2;
                    continue;
                }
                if state[rule] != 0 {
                    continue;
                }
                state[rule] = 1;
                path.push((rule, true));
                let mut leftmost = Vec::new();
                self.leftmost_rules(&rules.bodies[rule], &mut leftmost);
                for next in leftmost {
                    if state[next] == 1 {
                        return Err(format!("rule `{}` is left-recursive", rules.names[next]));
                    }
                    path.push((next, false));
                }
            }
        }
        Ok(())
    }

    /// Rules that a match may begin with.
    fn leftmost_rules(&self, expr: &Expr, rules: &mut Vec<usize>) {
        match expr {
            Expr::Chars(_) | Expr::Token { .. } => {}
            Expr::Rule(rule) => rules.push(*rule),
            Expr::Sequence(items) => {
                for item in items {
                    self.leftmost_rules(item, rules);
                    if !self.nullable(item) {
                        break;
                    }
                }
            }
            Expr::Choice(choices) => {
                choices.iter().for_each(|choice| self.leftmost_rules(choice, rules));
            }
            Expr::Repeat { inner, .. } => self.leftmost_rules(inner, rules),
        }
    }
}

/// Rules referenced by `expr`, directly or not.
fn reaches(rules: &Rules, expr: &Expr) -> Vec<bool> {
    let mut reached = vec![false; rules.bodies.len()];
    let mut left = vec![expr];
    while let Some(expr) = left.pop() {
        match expr {
            Expr::Chars(_) | Expr::Token { .. } => {}
            Expr::Rule(rule) => {
                if !reached[*rule] {
                    reached[*rule] = true;
                    left.push(&rules.bodies[*rule]);
                }
            }
            Expr::Sequence(items) | Expr::Choice(items) => left.extend(items),
            Expr::Repeat { inner, .. } => left.push(inner),
        }
    }
    reached
}

/// Adds the characters of `expr` itself, without those of referenced rules.
fn add_alphabet(expr: &Expr, alphabet: &mut CharSet) {
    match expr {
        Expr::Chars(set) => _ = alphabet.extend(set),
        Expr::Token { .. } | Expr::Rule(_) => {}
        Expr::Sequence(items) | Expr::Choice(items) => {
            items.iter().for_each(|item| add_alphabet(item, alphabet));
        }
        Expr::Repeat { inner, .. } => add_alphabet(inner, alphabet),
    }
}
