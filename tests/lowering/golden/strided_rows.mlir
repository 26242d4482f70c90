module attributes {hacc.target = #hacc.target<"Ascend910B3">, hivm.module_core_type = #hivm.module_core_type<AIV>, memref.memref_as_ptr} {
func.func @kernel(
    %ffts: i64 {hacc.arg_type = #hacc.arg_type<ffts_base_address>},
    %lock: memref<?xi8, #hivm.address_space<gm>>,
    %workspace: memref<?xi8, #hivm.address_space<gm>>,
    %tensor_x: memref<?xf32, #hivm.address_space<gm>>,
    %tensor_y: memref<?xf32, #hivm.address_space<gm>>,
    %symbol0_n: i32,
    %symbol1_stride: i32,
    %grid_x: i32,
    %grid_y: i32,
    %grid_z: i32,
    %program_x: i32,
    %program_y: i32,
    %program_z: i32
) attributes {SyncBlockLockArgIdx = 0 : i64, WorkspaceArgIdx = 1 : i64, hacc.entry, hacc.function_kind = #hacc.function_kind<DEVICE>, hivm.func_core_type = #hivm.func_core_type<AIV>, mix_mode = "aiv"} {
  hivm.hir.set_ffts_base_addr %ffts
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 64 : index
  %n_index1 = arith.index_cast %symbol0_n : i32 to index
  %stride_index2 = arith.index_cast %symbol1_stride : i32 to index
  %v3 = hivm.hir.get_block_idx -> i64
  %v4 = hivm.hir.get_block_num -> i64
  %v5 = arith.index_cast %v3 : i64 to index
  %v6 = arith.index_cast %v4 : i64 to index
  scf.for %turn7 = %v5 to %n_index1 step %v6 {
    %ub8 = memref.alloc() : memref<64xf32, #hivm.address_space<ub>>
    %v9 = arith.muli %turn7, %stride_index2 : index
    %gm10 = memref.reinterpret_cast %tensor_x to offset: [%v9], sizes: [64], strides: [1] : memref<?xf32, #hivm.address_space<gm>> to memref<64xf32, strided<[1], offset: ?>, #hivm.address_space<gm>>
    %ub11 = memref.reinterpret_cast %ub8 to offset: [0], sizes: [64], strides: [1] : memref<64xf32, #hivm.address_space<ub>> to memref<64xf32, strided<[1]>, #hivm.address_space<ub>>
    hivm.hir.load ins(%gm10 : memref<64xf32, strided<[1], offset: ?>, #hivm.address_space<gm>>) outs(%ub11 : memref<64xf32, strided<[1]>, #hivm.address_space<ub>>)
    %v12 = arith.muli %turn7, %c1 : index
    %gm13 = memref.reinterpret_cast %tensor_y to offset: [%v12], sizes: [64], strides: [1] : memref<?xf32, #hivm.address_space<gm>> to memref<64xf32, strided<[1], offset: ?>, #hivm.address_space<gm>>
    %ub14 = memref.reinterpret_cast %ub8 to offset: [0], sizes: [64], strides: [1] : memref<64xf32, #hivm.address_space<ub>> to memref<64xf32, strided<[1]>, #hivm.address_space<ub>>
    hivm.hir.store ins(%ub14 : memref<64xf32, strided<[1]>, #hivm.address_space<ub>>) outs(%gm13 : memref<64xf32, strided<[1], offset: ?>, #hivm.address_space<gm>>)
  }
  return
}
}
