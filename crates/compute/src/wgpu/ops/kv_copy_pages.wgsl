// Copies pages of a KV pool to others; a pair of equal pages pads the list.

@group(0) @binding(1) var<storage, read> data: array<u32>;
@group(0) @binding(2) var<storage, read_write> pool: array<u32>;

fn kernel_main(group: vec3<u32>, groups: vec3<u32>, lid: u32) {
    let i = group_index(group, groups) * WG + lid;
    let pair = i / p.words;
    if pair < p.n {
        let first = data[p.pairs + 2u * pair] * p.words;
        let to = data[p.pairs + 2u * pair + 1u] * p.words;
        let word = i % p.words;
        if first != to {
            pool[to + word] = pool[first + word];
        }
    }
}
