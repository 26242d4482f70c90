module attributes {hacc.target = #hacc.target<"Ascend910B3">, hivm.module_core_type = #hivm.module_core_type<AIV>, memref.memref_as_ptr} {
func.func @kernel(
    %ffts: i64 {hacc.arg_type = #hacc.arg_type<ffts_base_address>},
    %lock: memref<?xi8, #hivm.address_space<gm>>,
    %workspace: memref<?xi8, #hivm.address_space<gm>>,
    %tensor_x: memref<?xbf16, #hivm.address_space<gm>>,
    %tensor_y: memref<?xf32, #hivm.address_space<gm>>,
    %symbol0_n: i32,
    %grid_x: i32,
    %grid_y: i32,
    %grid_z: i32,
    %program_x: i32,
    %program_y: i32,
    %program_z: i32
) attributes {SyncBlockLockArgIdx = 0 : i64, WorkspaceArgIdx = 1 : i64, hacc.entry, hacc.function_kind = #hacc.function_kind<DEVICE>, hivm.func_core_type = #hivm.func_core_type<AIV>, mix_mode = "aiv"} {
  hivm.hir.set_ffts_base_addr %ffts
  %c0 = arith.constant 7 : index
  %c1 = arith.constant 8 : index
  %c2 = arith.constant 0 : index
  %c3 = arith.constant 64 : index
  %c4 = arith.constant 0.00000000000000000e+00 : bf16
  %n_index1 = arith.index_cast %symbol0_n : i32 to index
  %v2 = arith.addi %n_index1, %c0 : index
  %v3 = arith.floordivsi %v2, %c1 : index
  %v4 = hivm.hir.get_block_idx -> i64
  %v5 = hivm.hir.get_block_num -> i64
  %v6 = arith.index_cast %v4 : i64 to index
  %v7 = arith.index_cast %v5 : i64 to index
  scf.for %turn8 = %v6 to %v3 step %v7 {
    %ub9 = memref.alloc() : memref<512xf32, #hivm.address_space<ub>>
    %v10 = arith.muli %turn8, %c1 : index
    %v11 = arith.subi %n_index1, %v10 : index
    %v12 = arith.minsi %v11, %c1 : index
    %v13 = arith.cmpi slt, %v11, %c1 : index
    %v14 = arith.muli %v10, %c3 : index
    %ub15 = memref.alloc() : memref<512xbf16, #hivm.address_space<ub>>
    scf.if %v13 {
      hivm.hir.vbrc ins(%c4 : bf16) outs(%ub15 : memref<512xbf16, #hivm.address_space<ub>>)
      %v16 = arith.muli %v12, %c3 : index
      %gm17 = memref.reinterpret_cast %tensor_x to offset: [%v14], sizes: [%v16], strides: [1] : memref<?xbf16, #hivm.address_space<gm>> to memref<?xbf16, strided<[1], offset: ?>, #hivm.address_space<gm>>
      %ub18 = memref.reinterpret_cast %ub15 to offset: [0], sizes: [%v16], strides: [1] : memref<512xbf16, #hivm.address_space<ub>> to memref<?xbf16, strided<[1]>, #hivm.address_space<ub>>
      hivm.hir.load ins(%gm17 : memref<?xbf16, strided<[1], offset: ?>, #hivm.address_space<gm>>) outs(%ub18 : memref<?xbf16, strided<[1]>, #hivm.address_space<ub>>)
    } else {
      %gm19 = memref.reinterpret_cast %tensor_x to offset: [%v14], sizes: [512], strides: [1] : memref<?xbf16, #hivm.address_space<gm>> to memref<512xbf16, strided<[1], offset: ?>, #hivm.address_space<gm>>
      %ub20 = memref.reinterpret_cast %ub15 to offset: [0], sizes: [512], strides: [1] : memref<512xbf16, #hivm.address_space<ub>> to memref<512xbf16, strided<[1]>, #hivm.address_space<ub>>
      hivm.hir.load ins(%gm19 : memref<512xbf16, strided<[1], offset: ?>, #hivm.address_space<gm>>) outs(%ub20 : memref<512xbf16, strided<[1]>, #hivm.address_space<ub>>)
    }
    hivm.hir.vcast ins(%ub15 : memref<512xbf16, #hivm.address_space<ub>>) outs(%ub9 : memref<512xf32, #hivm.address_space<ub>>) round_mode = <rint>
    %v21 = arith.muli %turn8, %c1 : index
    %v22 = arith.subi %n_index1, %v21 : index
    %v23 = arith.minsi %v22, %c1 : index
    %v24 = arith.cmpi slt, %v22, %c1 : index
    %v25 = arith.muli %v21, %c3 : index
    %v26 = arith.muli %v23, %c3 : index
    %gm27 = memref.reinterpret_cast %tensor_y to offset: [%v25], sizes: [%v26], strides: [1] : memref<?xf32, #hivm.address_space<gm>> to memref<?xf32, strided<[1], offset: ?>, #hivm.address_space<gm>>
    %ub28 = memref.reinterpret_cast %ub9 to offset: [0], sizes: [%v26], strides: [1] : memref<512xf32, #hivm.address_space<ub>> to memref<?xf32, strided<[1]>, #hivm.address_space<ub>>
    hivm.hir.store ins(%ub28 : memref<?xf32, strided<[1]>, #hivm.address_space<ub>>) outs(%gm27 : memref<?xf32, strided<[1], offset: ?>, #hivm.address_space<gm>>)
  }
  return
}
}
