// Copies a page of a KV pool to another.

struct Params {
    words: u32,
    src: u32,
    dst: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read_write> pool: array<u32>;

fn kernel_main(group: vec3<u32>, groups: vec3<u32>, lid: u32) {
    let i = group_index(group, groups) * WG + lid;
    if i < p.words {
        pool[p.dst + i] = pool[p.src + i];
    }
}
