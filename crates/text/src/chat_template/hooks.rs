//! Replaces the operators of a parsed template by calls of this crate's filters.
//!
//! The engine's own operators are unbounded (ten thousand doublings of a string take all memory),
//! one of them panics (a reversed slice of an empty list), and some take values that Python
//! refuses. The filters that stand in for them are in `operators`; their names cannot be written
//! in a template. Trees are rebuilt because the engine's nodes can only be read; positions stay, so
//! that errors name the template's lines.

use minijinja::Value;
use minijinja::machinery::Span;
use minijinja::machinery::ast::{
    AutoEscape, BinOp, BinOpKind, Call, CallArg, CallBlock, Compare, CompareOp, Const, Do,
    EmitExpr, Expr, Filter, FilterBlock, ForLoop, GetAttr, GetItem, IfCond, IfExpr, List, Macro,
    Map, Set, SetBlock, Spanned, Stmt, Template, Test, Tuple, UnaryOp, UnaryOpKind, Var, WithBlock,
};

use crate::error::{Error, Result};

/// Names of the filters that [`hook`] calls.
pub(super) const ADD: &str = "%add";
pub(super) const BOUNDED: &str = "%bounded";
pub(super) const CONCAT: &str = "%concat";
pub(super) const ITERATE: &str = "%iterate";
pub(super) const MULTIPLY: &str = "%multiply";
pub(super) const REMAINDER: &str = "%remainder";
pub(super) const SLICE: &str = "%slice";

/// `statement` with filters in place of operators.
///
/// # Errors
/// If it belongs to a set of several templates (`extends`, `block`, `include`, `import`).
pub(super) fn hook<'a>(statement: &Stmt<'a>) -> Result<Stmt<'a>> {
    Ok(match statement {
        Stmt::Template(s) => {
            Stmt::Template(Spanned::new(Template { children: body(&s.children)? }, s.span()))
        }
        Stmt::EmitExpr(s) => {
            Stmt::EmitExpr(Spanned::new(EmitExpr { expr: expr(&s.expr) }, s.span()))
        }
        // As a value, so that it is counted like one.
        Stmt::EmitRaw(s) => {
            let text = Expr::Const(Spanned::new(Const { value: Value::from(s.raw) }, s.span()));
            Stmt::EmitExpr(Spanned::new(EmitExpr { expr: text }, s.span()))
        }
        Stmt::ForLoop(s) => {
            let node = ForLoop {
                target: target(&s.target),
                iter: filter(ITERATE, expr(&s.iter), [], s.iter.span()),
                filter_expr: s.filter_expr.as_ref().map(expr),
                recursive: s.recursive,
                body: body(&s.body)?,
                else_body: body(&s.else_body)?,
            };
            Stmt::ForLoop(Spanned::new(node, s.span()))
        }
        Stmt::IfCond(s) => {
            let node = IfCond {
                expr: expr(&s.expr),
                true_body: body(&s.true_body)?,
                false_body: body(&s.false_body)?,
            };
            Stmt::IfCond(Spanned::new(node, s.span()))
        }
        Stmt::WithBlock(s) => {
            let one = |(name, value): &(Expr<'a>, Expr<'a>)| (target(name), bounded(value));
            let node = WithBlock {
                assignments: s.assignments.iter().map(one).collect(),
                body: body(&s.body)?,
            };
            Stmt::WithBlock(Spanned::new(node, s.span()))
        }
        Stmt::Set(s) => {
            let node = Set { target: target(&s.target), expr: bounded(&s.expr) };
            Stmt::Set(Spanned::new(node, s.span()))
        }
        Stmt::SetBlock(s) => {
            let node = SetBlock {
                target: target(&s.target),
                filter: s.filter.as_ref().map(expr),
                body: body(&s.body)?,
            };
            Stmt::SetBlock(Spanned::new(node, s.span()))
        }
        Stmt::AutoEscape(s) => {
            let node = AutoEscape { enabled: expr(&s.enabled), body: body(&s.body)? };
            Stmt::AutoEscape(Spanned::new(node, s.span()))
        }
        Stmt::FilterBlock(s) => {
            let node = FilterBlock { filter: expr(&s.filter), body: body(&s.body)? };
            Stmt::FilterBlock(Spanned::new(node, s.span()))
        }
        Stmt::Macro(s) => Stmt::Macro(macro_node(s)?),
        Stmt::CallBlock(s) => {
            let node = CallBlock { call: call(&s.call), macro_decl: macro_node(&s.macro_decl)? };
            Stmt::CallBlock(Spanned::new(node, s.span()))
        }
        Stmt::Continue(s) => {
            Stmt::Continue(Spanned::new(minijinja::machinery::ast::Continue, s.span()))
        }
        Stmt::Break(s) => Stmt::Break(Spanned::new(minijinja::machinery::ast::Break, s.span())),
        Stmt::Do(s) => Stmt::Do(Spanned::new(Do { call: call(&s.call) }, s.span())),
        Stmt::Block(s) => return Err(several_files(s.span())),
        Stmt::Import(s) => return Err(several_files(s.span())),
        Stmt::FromImport(s) => return Err(several_files(s.span())),
        Stmt::Extends(s) => return Err(several_files(s.span())),
        Stmt::Include(s) => return Err(several_files(s.span())),
    })
}

fn several_files(span: Span) -> Error {
    Error::ChatTemplate {
        line: usize::from(span.start_line),
        reason: "a chat template is one file: no extends, block, include or import".to_owned(),
    }
}

fn body<'a>(statements: &[Stmt<'a>]) -> Result<Vec<Stmt<'a>>> {
    statements.iter().map(hook).collect()
}

fn macro_node<'a>(s: &Spanned<Macro<'a>>) -> Result<Spanned<Macro<'a>>> {
    let node = Macro {
        name: s.name,
        args: s.args.iter().map(target).collect(),
        defaults: s.defaults.iter().map(expr).collect(),
        body: body(&s.body)?,
    };
    Ok(Spanned::new(node, s.span()))
}

/// Target of an assignment: a copy without filters.
fn target<'a>(expression: &Expr<'a>) -> Expr<'a> {
    match expression {
        Expr::List(e) => {
            let items = e.items.iter().map(target).collect();
            Expr::List(Spanned::new(List { items }, e.span()))
        }
        Expr::GetAttr(e) => {
            Expr::GetAttr(Spanned::new(GetAttr { expr: target(&e.expr), name: e.name }, e.span()))
        }
        other => expr(other),
    }
}

/// A stored value, whose size and nesting are checked.
fn bounded<'a>(expression: &Expr<'a>) -> Expr<'a> {
    match expression {
        // Literals of collections are checked themselves.
        Expr::Const(_) | Expr::List(_) | Expr::Tuple(_) | Expr::Map(_) => expr(expression),
        _ => filter(BOUNDED, expr(expression), [], expression.span()),
    }
}

fn filter<'a, const N: usize>(
    name: &'static str,
    value: Expr<'a>,
    args: [Expr<'a>; N],
    span: Span,
) -> Expr<'a> {
    let args = args.into_iter().map(CallArg::Pos).collect();
    Expr::Filter(Spanned::new(Filter { name, expr: Some(value), args }, span))
}

fn expr<'a>(expression: &Expr<'a>) -> Expr<'a> {
    let span = expression.span();
    match expression {
        Expr::Var(e) => Expr::Var(Spanned::new(Var { id: e.id }, span)),
        Expr::Const(e) => Expr::Const(Spanned::new(Const { value: e.value.clone() }, span)),
        Expr::Slice(e) => {
            let bound = |bound: &Option<Expr<'a>>| match bound {
                Some(bound) => expr(bound),
                None => Expr::Const(Spanned::new(Const { value: Value::from(()) }, span)),
            };
            filter(SLICE, expr(&e.expr), [bound(&e.start), bound(&e.stop), bound(&e.step)], span)
        }
        Expr::UnaryOp(e) => {
            let not = matches!(e.op, UnaryOpKind::Not);
            let op = if not { UnaryOpKind::Not } else { UnaryOpKind::Neg };
            Expr::UnaryOp(Spanned::new(UnaryOp { op, expr: expr(&e.expr) }, span))
        }
        Expr::BinOp(e) => {
            let (left, right) = (expr(&e.left), expr(&e.right));
            match e.op {
                BinOpKind::Add => filter(ADD, left, [right], span),
                BinOpKind::Mul => filter(MULTIPLY, left, [right], span),
                BinOpKind::Rem => filter(REMAINDER, left, [right], span),
                BinOpKind::Concat => filter(CONCAT, left, [right], span),
                op => Expr::BinOp(Spanned::new(BinOp { op, left, right }, span)),
            }
        }
        Expr::Compare(e) => {
            let ops = e.ops.iter().map(|op| CompareOp { op: op.op, expr: expr(&op.expr) });
            let node = Compare { expr: expr(&e.expr), ops: ops.collect() };
            Expr::Compare(Spanned::new(node, span))
        }
        Expr::IfExpr(e) => {
            let node = IfExpr {
                test_expr: expr(&e.test_expr),
                true_expr: expr(&e.true_expr),
                false_expr: e.false_expr.as_ref().map(expr),
            };
            Expr::IfExpr(Spanned::new(node, span))
        }
        Expr::Filter(e) => {
            let node =
                Filter { name: e.name, expr: e.expr.as_ref().map(expr), args: arguments(&e.args) };
            Expr::Filter(Spanned::new(node, span))
        }
        Expr::Test(e) => {
            let node = Test { name: e.name, expr: expr(&e.expr), args: arguments(&e.args) };
            Expr::Test(Spanned::new(node, span))
        }
        Expr::GetAttr(e) => {
            Expr::GetAttr(Spanned::new(GetAttr { expr: expr(&e.expr), name: e.name }, span))
        }
        Expr::GetItem(e) => {
            let node = GetItem { expr: expr(&e.expr), subscript_expr: expr(&e.subscript_expr) };
            Expr::GetItem(Spanned::new(node, span))
        }
        Expr::Call(e) => Expr::Call(call(e)),
        Expr::List(e) => {
            let items = e.items.iter().map(expr).collect();
            filter(BOUNDED, Expr::List(Spanned::new(List { items }, span)), [], span)
        }
        Expr::Tuple(e) => {
            let items = e.items.iter().map(expr).collect();
            filter(BOUNDED, Expr::Tuple(Spanned::new(Tuple { items }, span)), [], span)
        }
        Expr::Map(e) => {
            let node = Map {
                keys: e.keys.iter().map(expr).collect(),
                values: e.values.iter().map(expr).collect(),
            };
            filter(BOUNDED, Expr::Map(Spanned::new(node, span)), [], span)
        }
    }
}

fn call<'a>(e: &Spanned<Call<'a>>) -> Spanned<Call<'a>> {
    Spanned::new(Call { expr: expr(&e.expr), args: arguments(&e.args) }, e.span())
}

fn arguments<'a>(args: &[CallArg<'a>]) -> Vec<CallArg<'a>> {
    let one = |arg: &CallArg<'a>| match arg {
        CallArg::Pos(e) => CallArg::Pos(expr(e)),
        CallArg::Kwarg(name, e) => CallArg::Kwarg(name, expr(e)),
        CallArg::PosSplat(e) => CallArg::PosSplat(expr(e)),
        CallArg::KwargSplat(e) => CallArg::KwargSplat(expr(e)),
    };
    args.iter().map(one).collect()
}
