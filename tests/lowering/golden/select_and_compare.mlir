module attributes {hacc.target = #hacc.target<"Ascend910B3">, hivm.module_core_type = #hivm.module_core_type<AIV>, memref.memref_as_ptr} {
func.func @kernel(
    %ffts: i64 {hacc.arg_type = #hacc.arg_type<ffts_base_address>},
    %lock: memref<?xi8, #hivm.address_space<gm>>,
    %workspace: memref<?xi8, #hivm.address_space<gm>>,
    %tensor_x: memref<?xi32, #hivm.address_space<gm>>,
    %tensor_y: memref<?xi32, #hivm.address_space<gm>>,
    %grid_x: i32,
    %grid_y: i32,
    %grid_z: i32,
    %program_x: i32,
    %program_y: i32,
    %program_z: i32
) attributes {SyncBlockLockArgIdx = 0 : i64, WorkspaceArgIdx = 1 : i64, hacc.entry, hacc.function_kind = #hacc.function_kind<DEVICE>, hivm.func_core_type = #hivm.func_core_type<AIV>, mix_mode = "aiv"} {
  hivm.hir.set_ffts_base_addr %ffts
  %c0 = arith.constant 1 : index
  %c1 = arith.constant 0 : index
  %c2 = arith.constant 7 : index
  %c3 = arith.constant 7 : i32
  %v1 = hivm.hir.get_block_idx -> i64
  %v2 = hivm.hir.get_block_num -> i64
  %v3 = arith.index_cast %v1 : i64 to index
  %v4 = arith.index_cast %v2 : i64 to index
  scf.for %turn5 = %v3 to %c0 step %v4 {
    %ub9 = memref.alloc() : memref<64xi32, #hivm.address_space<ub>>
    hivm.hir.varange offset[%c1] strides[%c0] outs(%ub9 : memref<64xi32, #hivm.address_space<ub>>)
    %ub6 = memref.alloc() : memref<256xi32, #hivm.address_space<ub>>
    %gm7 = memref.reinterpret_cast %tensor_x to offset: [%c1], sizes: [256], strides: [1] : memref<?xi32, #hivm.address_space<gm>> to memref<256xi32, strided<[1], offset: ?>, #hivm.address_space<gm>>
    %ub8 = memref.reinterpret_cast %ub6 to offset: [0], sizes: [256], strides: [1] : memref<256xi32, #hivm.address_space<ub>> to memref<256xi32, strided<[1]>, #hivm.address_space<ub>>
    hivm.hir.load ins(%gm7 : memref<256xi32, strided<[1], offset: ?>, #hivm.address_space<gm>>) outs(%ub8 : memref<256xi32, strided<[1]>, #hivm.address_space<ub>>)
    %ub10 = memref.alloc() : memref<256xi1, #hivm.address_space<ub>>
    %ub11 = memref.alloc() : memref<256xi32, #hivm.address_space<ub>>
    hivm.hir.vmax ins(%ub6, %c3 : memref<256xi32, #hivm.address_space<ub>>, i32) outs(%ub11 : memref<256xi32, #hivm.address_space<ub>>)
    hivm.hir.vcmp ins(%ub11, %ub6 : memref<256xi32, #hivm.address_space<ub>>, memref<256xi32, #hivm.address_space<ub>>) outs(%ub10 : memref<256xi1, #hivm.address_space<ub>>) compare_mode = <ne>
    %ub12 = memref.alloc() : memref<256xi32, #hivm.address_space<ub>>
    %v13 = memref.reinterpret_cast %ub9 to offset: [0], sizes: [1, 64], strides: [64, 1] : memref<64xi32, #hivm.address_space<ub>> to memref<1x64xi32, strided<[64, 1]>, #hivm.address_space<ub>>
    %v14 = memref.reinterpret_cast %ub12 to offset: [0], sizes: [4, 64], strides: [64, 1] : memref<256xi32, #hivm.address_space<ub>> to memref<4x64xi32, strided<[64, 1]>, #hivm.address_space<ub>>
    hivm.hir.vbrc ins(%v13 : memref<1x64xi32, strided<[64, 1]>, #hivm.address_space<ub>>) outs(%v14 : memref<4x64xi32, strided<[64, 1]>, #hivm.address_space<ub>>) broadcast_dims = [0]
    hivm.hir.vsel ins(%ub10, %ub12, %ub6 : memref<256xi1, #hivm.address_space<ub>>, memref<256xi32, #hivm.address_space<ub>>, memref<256xi32, #hivm.address_space<ub>>) outs(%ub6 : memref<256xi32, #hivm.address_space<ub>>)
    %gm15 = memref.reinterpret_cast %tensor_y to offset: [%c1], sizes: [256], strides: [1] : memref<?xi32, #hivm.address_space<gm>> to memref<256xi32, strided<[1], offset: ?>, #hivm.address_space<gm>>
    %ub16 = memref.reinterpret_cast %ub6 to offset: [0], sizes: [256], strides: [1] : memref<256xi32, #hivm.address_space<ub>> to memref<256xi32, strided<[1]>, #hivm.address_space<ub>>
    hivm.hir.store ins(%ub16 : memref<256xi32, strided<[1]>, #hivm.address_space<ub>>) outs(%gm15 : memref<256xi32, strided<[1], offset: ?>, #hivm.address_space<gm>>)
  }
  return
}
}
