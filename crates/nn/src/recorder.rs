//! Recording of a model's forward pass as a program.

use stonechat_compute::op::{
    AttentionArgs, Count, EmbedArgs, KvShape, KvWriteArgs, MoeArgs, Op, PoolId, Port, RopeArgs,
    Rows, Tensor, TensorInfo, Weight,
};

use crate::GatedActivation;
use crate::program::{Node, Program, RowClass, Segment, SegmentName};

/// Records ops. Each checks the shapes of its operands.
///
/// # Panics
/// Every op panics if its operands do not fit, or before the first [`segment`](Self::segment).
#[derive(Debug, Default)]
pub struct Recorder {
    program: Program,
}

impl Recorder {
    /// An empty program.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a KV pool.
    pub fn pool(&mut self, shape: KvShape) -> PoolId {
        self.program.pools.push(shape);
        PoolId(self.program.pools.len() - 1)
    }

    /// Starts a segment.
    ///
    /// `rows` are those of its products: fusion makes one variant of the segment for each class of rows of the device.
    pub fn segment(&mut self, name: SegmentName, rows: Rows) {
        self.program.segments.push(Segment { name, rows, class: RowClass::ALL, nodes: Vec::new() });
    }

    /// The program.
    #[must_use]
    pub fn finish(self) -> Program {
        self.program
    }

    /// Records an op with results of these shapes.
    fn push_node(&mut self, op: Op, inputs: &[Tensor], results: Vec<TensorInfo>) -> Option<Tensor> {
        let first = self.program.tensors.len();
        let result = results.first().map(|&TensorInfo { rows, cols, .. }| Tensor {
            id: first,
            rows,
            first_col: 0,
            cols,
        });
        self.program.tensors.extend(results);
        let outputs = (first..self.program.tensors.len()).collect();
        let node = Node::new(op, inputs.to_vec(), outputs);
        let segment = self.program.segments.last_mut().expect("an op is recorded in a segment");
        segment.nodes.push(node);
        result
    }

    /// Records a source.
    fn source(&mut self, op: Op, rows: Rows, cols: usize) -> Tensor {
        let result = self.push_node(op, &[], vec![TensorInfo::f32(rows, cols)]);
        result.expect("a source has a result")
    }

    /// Records an op without a result.
    #[track_caller]
    fn sink(&mut self, op: Op, inputs: &[Tensor]) {
        let results = op.results(inputs).expect("no source");
        self.push_node(op, inputs, results);
    }

    /// Records an op; returns its result.
    ///
    /// # Panics
    /// If the op is a source or has no result.
    #[track_caller]
    pub fn op(&mut self, op: Op, inputs: &[Tensor]) -> Tensor {
        let results = op.results(inputs).expect("no source");
        self.push_node(op, inputs, results).expect("an op with a result")
    }

    /// [`Op::Embed`].
    pub fn embed(&mut self, args: EmbedArgs) -> Tensor {
        let cols = args.table.info().cols;
        self.source(Op::Embed(args), Rows::of(Count::Tokens), cols)
    }

    /// [`Op::Import`].
    pub fn import(&mut self, port: Port, rows: Rows, cols: usize) -> Tensor {
        self.source(Op::Import(port), rows, cols)
    }

    /// [`Op::Constant`]: `[each * count, cols]`.
    ///
    /// # Panics
    /// If the values are no whole number of rows.
    #[track_caller]
    pub fn constant(&mut self, values: &Weight, count: Count, cols: usize) -> Tensor {
        let info = values.info();
        let len = info.rows * info.cols;
        assert!(len.is_multiple_of(cols), "constant: {len} values in rows of {cols}");
        let rows = Rows { count, each: len / cols };
        self.source(Op::Constant(values.clone()), rows, cols)
    }

    /// [`Op::Gather`].
    #[track_caller]
    pub fn gather(&mut self, x: Tensor, count: Count) -> Tensor {
        self.op(Op::Gather(count), &[x])
    }

    /// [`Op::Rope`].
    #[track_caller]
    pub fn rope(&mut self, x: Tensor, args: RopeArgs) -> Tensor {
        self.op(Op::Rope(args), &[x])
    }

    /// [`Op::Gated`].
    #[track_caller]
    pub fn gated(&mut self, gate: Tensor, up: Tensor, activation: GatedActivation) -> Tensor {
        self.op(Op::Gated(activation), &[gate, up])
    }

    /// [`Op::Add`].
    #[track_caller]
    pub fn add(&mut self, x: Tensor, y: Tensor) -> Tensor {
        self.op(Op::Add, &[x, y])
    }

    /// [`Op::Moe`].
    #[track_caller]
    pub fn moe(&mut self, x: Tensor, logits: Tensor, args: MoeArgs) -> Tensor {
        self.op(Op::Moe(args), &[x, logits])
    }

    /// [`Op::KvWrite`]. Attention that is recorded later reads the keys and values.
    ///
    /// # Panics
    /// If there is no such layer or the shapes do not fit the pool.
    #[track_caller]
    pub fn kv_write(&mut self, args: KvWriteArgs, k: Tensor, v: Tensor) {
        let KvShape { n_layers, n_kv_heads, head_dim, .. } = self.program.pools[args.pool.0];
        assert!(args.layer < n_layers, "kv_write: layer {} of {n_layers}", args.layer);
        assert_eq!(k.cols, n_kv_heads * head_dim, "kv_write: columns of the keys");
        self.sink(Op::KvWrite(args), &[k, v]);
    }

    /// [`Op::Attention`].
    ///
    /// # Panics
    /// If there is no such layer or the shapes do not fit the pool.
    #[track_caller]
    pub fn attention(&mut self, q: Tensor, args: AttentionArgs) -> Tensor {
        let KvShape { n_layers, n_kv_heads, head_dim, .. } = self.program.pools[args.pool.0];
        assert!(args.layer < n_layers, "attention: layer {} of {n_layers}", args.layer);
        assert_eq!(q.cols, args.n_heads * head_dim, "attention: columns of the queries");
        assert!(args.n_heads.is_multiple_of(n_kv_heads), "attention: heads of {n_kv_heads}");
        self.op(Op::Attention(args), &[q])
    }

    /// [`Op::LogitFilter`].
    #[track_caller]
    pub fn logit_filter(&mut self, x: Tensor) -> Tensor {
        self.op(Op::LogitFilter, &[x])
    }

    /// [`Op::TopK`].
    #[track_caller]
    pub fn top_k(&mut self, x: Tensor) -> Tensor {
        self.op(Op::TopK, &[x])
    }

    /// [`Op::Export`].
    #[track_caller]
    pub fn export(&mut self, port: Port, x: Tensor) {
        self.sink(Op::Export(port), &[x]);
    }

    /// Lets the host read a value.
    pub fn output(&mut self, port: Port, x: Tensor) {
        self.program.outputs.push((port, x));
    }
}
