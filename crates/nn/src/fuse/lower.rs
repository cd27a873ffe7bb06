//! Lowering: ops that a device runs as several ones.
//!
//! ```text
//! y = moe x, logits        routes = moe_route logits                 y = im2col x
//!                          order = moe_sort routes                   z = matmul y
//!                          gate, up = expert_matmul x, routes, order
//!                          hidden = gated gate, up
//!                          down = expert_matmul hidden, routes, order
//!                          y = moe_combine down, routes
//! ```

use stonechat_compute::op::{
    ConvArgs, ExpertMatmulArgs, Im2colArgs, MoeArgs, MoeRouteArgs, MoeSortArgs, Op, Tensor, Weight,
};

use super::{Capabilities, Conv1dKernels, MoeKernels, Rules};
use crate::program::Node;

impl Rules<'_> {
    /// Starts with `nodes`, lowered for a device.
    pub(super) fn lower(&mut self, nodes: Vec<Node>, capabilities: &Capabilities) {
        for node in nodes {
            let lowered = match (&node.op, capabilities.moe, capabilities.conv1d) {
                (Op::Moe(args), MoeKernels::Mlp, _) => self.expert_mlp(args, &node.inputs),
                (Op::Moe(args), MoeKernels::Products { sorted }, _) => {
                    self.expert_products(args, &node.inputs, sorted)
                }
                (Op::Conv1d(args), _, Conv1dKernels::Im2col { col_multiple }) => {
                    self.im2col(args, node.inputs[0], col_multiple)
                }
                _ => (node.op, node.inputs),
            };
            let (op, inputs) = lowered;
            self.nodes.push(Some(Node { op, inputs, ..node }));
        }
    }

    /// Appends an op with one result.
    fn push(&mut self, op: Op, inputs: &[Tensor]) -> Tensor {
        let info = op.results(inputs).and_then(|infos| infos.first().copied());
        let info = info.expect("a lowered op has a result");
        let id = self.tensors.len();
        self.tensors.push(info);
        self.nodes.push(Some(Node::new(op, inputs.to_vec(), vec![id])));
        Tensor { id, rows: info.rows, first_col: 0, cols: info.cols }
    }

    fn route(&mut self, args: &MoeArgs, logits: Tensor) -> Tensor {
        let &MoeArgs { n_used, routing, .. } = args;
        self.push(Op::MoeRoute(MoeRouteArgs { n_used, routing }), &[logits])
    }

    /// Last op of [`MoeKernels::Mlp`].
    fn expert_mlp(&mut self, args: &MoeArgs, inputs: &[Tensor]) -> (Op, Vec<Tensor>) {
        let routes = self.route(args, inputs[1]);
        let order = self.push(Op::MoeSort(sort_args(args)), &[routes]);
        (Op::ExpertMlp(args.clone()), vec![inputs[0], routes, order])
    }

    /// Last op of [`MoeKernels::Products`].
    fn expert_products(
        &mut self,
        args: &MoeArgs,
        inputs: &[Tensor],
        sorted: bool,
    ) -> (Op, Vec<Tensor>) {
        let (x, routes) = (inputs[0], self.route(args, inputs[1]));
        let order = sorted.then(|| self.push(Op::MoeSort(sort_args(args)), &[routes]));
        let product = |rules: &mut Self, x, weight: &Weight, bias: &Option<Weight>| {
            let op = Op::ExpertMatmul(ExpertMatmulArgs {
                weight: weight.clone(),
                bias: bias.clone(),
                n_experts: args.n_experts,
                order: sorted.then(|| sort_args(args)),
            });
            let inputs: Vec<Tensor> = [x, routes].into_iter().chain(order).collect();
            rules.push(op, &inputs)
        };
        let gate = product(self, x, &args.gate, &args.gate_bias);
        let up = product(self, x, &args.up, &args.up_bias);
        let hidden = self.push(Op::Gated(args.activation), &[gate, up]);
        let down = product(self, hidden, &args.down, &args.down_bias);
        (Op::MoeCombine, vec![down, routes])
    }

    /// Last op of [`Conv1dKernels::Im2col`].
    fn im2col(&mut self, args: &ConvArgs, x: Tensor, col_multiple: usize) -> (Op, Vec<Tensor>) {
        let cols = (3 * x.cols).next_multiple_of(col_multiple);
        let taps = self.push(Op::Im2col(Im2colArgs { stride: args.stride, cols }), &[x]);
        (Op::Matmul(args.matmul.clone()), vec![taps])
    }
}

fn sort_args(args: &MoeArgs) -> MoeSortArgs {
    let weights = [&args.gate, &args.up, &args.down].map(Weight::clone).into();
    MoeSortArgs { n_experts: args.n_experts, weights }
}
