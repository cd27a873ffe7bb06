// Entry point and sums over a workgroup of WG invocations, through its subgroups.

// Number of the subgroup, how many there are, and the place in it.
var<private> subgroup: vec3<u32>;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(subgroup_id) subgroup_id: u32,
    @builtin(num_subgroups) num_subgroups: u32,
    @builtin(subgroup_size) subgroup_size: u32,
    @builtin(subgroup_invocation_id) place: u32,
) {
    subgroup = vec3<u32>(subgroup_id, num_subgroups, place);
    // Adjacent numbers are adjacent in a subgroup, which local_invocation_index does not promise.
    run(group, groups, subgroup_id * subgroup_size + place);
}

// Number of a workgroup of a line that was folded into two dimensions.
fn group_index(group: vec3<u32>, groups: vec3<u32>) -> u32 {
    return group.y * groups.x + group.x;
}

var<workgroup> partial_sums: array<f32, WG>;

// The sum of what every invocation of the workgroup gives.
fn reduce_add(value: f32, lid: u32) -> f32 {
    let sum = subgroupAdd(value);
    // Whoever still reads the last sum.
    workgroupBarrier();
    if subgroup.z == 0u {
        partial_sums[subgroup.x] = sum;
    }
    workgroupBarrier();
    var total = 0.0;
    for (var i = 0u; i < subgroup.y; i++) {
        total += partial_sums[i];
    }
    return total;
}

// The greatest of what the invocations of the workgroup give.
fn reduce_max(value: f32, lid: u32) -> f32 {
    let greatest = subgroupMax(value);
    // Whoever still reads the last sum.
    workgroupBarrier();
    if subgroup.z == 0u {
        partial_sums[subgroup.x] = greatest;
    }
    workgroupBarrier();
    var best = greatest;
    for (var i = 0u; i < subgroup.y; i++) {
        best = max(best, partial_sums[i]);
    }
    return best;
}
