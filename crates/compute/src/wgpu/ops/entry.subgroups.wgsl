// Entry point, and reductions over a workgroup of WG invocations by subgroup operations.

struct Subgroup {
    id: u32,
    // Subgroups in the workgroup.
    count: u32,
    // Index of the invocation.
    lane: u32,
}

// Subgroup of this invocation.
var<private> subgroup: Subgroup;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(subgroup_id) subgroup_id: u32,
    @builtin(num_subgroups) num_subgroups: u32,
    @builtin(subgroup_size) subgroup_size: u32,
    @builtin(subgroup_invocation_id) lane: u32,
) {
    subgroup = Subgroup(subgroup_id, num_subgroups, lane);
    // Adjacent indices are adjacent in a subgroup, which local_invocation_index does not guarantee.
    kernel_main(group, groups, subgroup_id * subgroup_size + lane);
}

// Linear index of a workgroup of `dispatch_linear`.
fn group_index(group: vec3<u32>, groups: vec3<u32>) -> u32 {
    return group.y * groups.x + group.x;
}

var<workgroup> reduce_partials: array<f32, WG>;

// Sum of `value` over the workgroup; in uniform control flow.
fn reduce_add(value: f32, lid: u32) -> f32 {
    let sum = subgroupAdd(value);
    // Reads of the last reduction are done.
    workgroupBarrier();
    if subgroup.lane == 0u {
        reduce_partials[subgroup.id] = sum;
    }
    workgroupBarrier();
    var total = 0.0;
    for (var i = 0u; i < subgroup.count; i++) {
        total += reduce_partials[i];
    }
    return total;
}

// Maximum of `value` over the workgroup; in uniform control flow.
fn reduce_max(value: f32, lid: u32) -> f32 {
    let subgroup_max = subgroupMax(value);
    // Reads of the last reduction are done.
    workgroupBarrier();
    if subgroup.lane == 0u {
        reduce_partials[subgroup.id] = subgroup_max;
    }
    workgroupBarrier();
    var result = subgroup_max;
    for (var i = 0u; i < subgroup.count; i++) {
        result = max(result, reduce_partials[i]);
    }
    return result;
}
