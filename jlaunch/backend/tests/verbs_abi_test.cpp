// The layout of verbs_abi.h against rdma-core's own header, name by name.
// Compiled where that header is installed; all of it is checked by the compiler.

#include "verbs_abi.h"

#include <cstddef>
#include <type_traits>

#include <doctest/doctest.h>
#include <infiniband/verbs.h>

namespace {

#define SAME_SIZE(type)                                               \
  static_assert(sizeof(jlaunch::abi::type) == sizeof(struct ::type)); \
  static_assert(alignof(jlaunch::abi::type) == alignof(struct ::type))
#define SAME_PLACE(type, field)                                               \
  static_assert(                                                              \
      offsetof(jlaunch::abi::type, field) == offsetof(struct ::type, field)); \
  static_assert(sizeof(jlaunch::abi::type::field) == sizeof(::type::field))
#define SAME_VALUE(name) \
  static_assert(         \
      static_cast<long>(jlaunch::abi::name) == static_cast<long>(::name))

static_assert(sizeof(jlaunch::abi::ibv_gid) == sizeof(union ::ibv_gid));

SAME_SIZE(ibv_port_attr);
SAME_PLACE(ibv_port_attr, state);
SAME_PLACE(ibv_port_attr, active_mtu);
SAME_PLACE(ibv_port_attr, gid_tbl_len);
SAME_PLACE(ibv_port_attr, max_msg_sz);
SAME_PLACE(ibv_port_attr, pkey_tbl_len);
SAME_PLACE(ibv_port_attr, lid);
SAME_PLACE(ibv_port_attr, link_layer);
SAME_PLACE(ibv_port_attr, flags);
SAME_PLACE(ibv_port_attr, port_cap_flags2);

SAME_SIZE(ibv_wc);
SAME_PLACE(ibv_wc, wr_id);
SAME_PLACE(ibv_wc, status);
SAME_PLACE(ibv_wc, opcode);
SAME_PLACE(ibv_wc, vendor_err);
SAME_PLACE(ibv_wc, byte_len);
SAME_PLACE(ibv_wc, imm_data);
SAME_PLACE(ibv_wc, qp_num);
SAME_PLACE(ibv_wc, src_qp);
SAME_PLACE(ibv_wc, wc_flags);
SAME_PLACE(ibv_wc, pkey_index);
SAME_PLACE(ibv_wc, dlid_path_bits);

SAME_SIZE(ibv_pd);
SAME_PLACE(ibv_pd, handle);

SAME_SIZE(ibv_mr);
SAME_PLACE(ibv_mr, addr);
SAME_PLACE(ibv_mr, length);
SAME_PLACE(ibv_mr, lkey);
SAME_PLACE(ibv_mr, rkey);

SAME_SIZE(ibv_global_route);
SAME_PLACE(ibv_global_route, dgid);
SAME_PLACE(ibv_global_route, sgid_index);
SAME_PLACE(ibv_global_route, hop_limit);

SAME_SIZE(ibv_ah_attr);
SAME_PLACE(ibv_ah_attr, grh);
SAME_PLACE(ibv_ah_attr, dlid);
SAME_PLACE(ibv_ah_attr, sl);
SAME_PLACE(ibv_ah_attr, is_global);
SAME_PLACE(ibv_ah_attr, port_num);

SAME_SIZE(ibv_qp_cap);
SAME_PLACE(ibv_qp_cap, max_send_wr);
SAME_PLACE(ibv_qp_cap, max_recv_wr);
SAME_PLACE(ibv_qp_cap, max_inline_data);

SAME_SIZE(ibv_qp_init_attr);
SAME_PLACE(ibv_qp_init_attr, send_cq);
SAME_PLACE(ibv_qp_init_attr, recv_cq);
SAME_PLACE(ibv_qp_init_attr, srq);
SAME_PLACE(ibv_qp_init_attr, cap);
SAME_PLACE(ibv_qp_init_attr, qp_type);
SAME_PLACE(ibv_qp_init_attr, sq_sig_all);

SAME_SIZE(ibv_qp_attr);
SAME_PLACE(ibv_qp_attr, qp_state);
SAME_PLACE(ibv_qp_attr, path_mtu);
SAME_PLACE(ibv_qp_attr, rq_psn);
SAME_PLACE(ibv_qp_attr, sq_psn);
SAME_PLACE(ibv_qp_attr, dest_qp_num);
SAME_PLACE(ibv_qp_attr, qp_access_flags);
SAME_PLACE(ibv_qp_attr, cap);
SAME_PLACE(ibv_qp_attr, ah_attr);
SAME_PLACE(ibv_qp_attr, pkey_index);
SAME_PLACE(ibv_qp_attr, port_num);
SAME_PLACE(ibv_qp_attr, rate_limit);

SAME_SIZE(ibv_sge);
SAME_PLACE(ibv_sge, addr);
SAME_PLACE(ibv_sge, length);
SAME_PLACE(ibv_sge, lkey);

SAME_SIZE(ibv_send_wr);
SAME_PLACE(ibv_send_wr, next);
SAME_PLACE(ibv_send_wr, sg_list);
SAME_PLACE(ibv_send_wr, num_sge);
SAME_PLACE(ibv_send_wr, opcode);
SAME_PLACE(ibv_send_wr, send_flags);
SAME_PLACE(ibv_send_wr, imm_data);

SAME_SIZE(ibv_recv_wr);
SAME_PLACE(ibv_recv_wr, next);
SAME_PLACE(ibv_recv_wr, sg_list);
SAME_PLACE(ibv_recv_wr, num_sge);

SAME_SIZE(ibv_qp);
SAME_PLACE(ibv_qp, context);
SAME_PLACE(ibv_qp, pd);
SAME_PLACE(ibv_qp, send_cq);
SAME_PLACE(ibv_qp, recv_cq);
SAME_PLACE(ibv_qp, qp_num);
SAME_PLACE(ibv_qp, state);
SAME_PLACE(ibv_qp, qp_type);
SAME_PLACE(ibv_qp, mutex);
SAME_PLACE(ibv_qp, events_completed);

SAME_SIZE(ibv_cq);
SAME_PLACE(ibv_cq, cq_context);
SAME_PLACE(ibv_cq, cqe);
SAME_PLACE(ibv_cq, mutex);
SAME_PLACE(ibv_cq, async_events_completed);

SAME_SIZE(ibv_device);
SAME_PLACE(ibv_device, node_type);
SAME_PLACE(ibv_device, transport_type);
SAME_PLACE(ibv_device, name);
SAME_PLACE(ibv_device, dev_name);
SAME_PLACE(ibv_device, ibdev_path);

SAME_SIZE(ibv_context_ops);
SAME_PLACE(ibv_context_ops, poll_cq);
SAME_PLACE(ibv_context_ops, post_send);
SAME_PLACE(ibv_context_ops, post_recv);

SAME_SIZE(ibv_context);
SAME_PLACE(ibv_context, device);
SAME_PLACE(ibv_context, ops);
SAME_PLACE(ibv_context, num_comp_vectors);
SAME_PLACE(ibv_context, mutex);
SAME_PLACE(ibv_context, abi_compat);

SAME_VALUE(IBV_MTU_1024);
SAME_VALUE(IBV_MTU_4096);
SAME_VALUE(IBV_PORT_ACTIVE);
SAME_VALUE(IBV_WC_SUCCESS);
SAME_VALUE(IBV_WC_LOC_LEN_ERR);
SAME_VALUE(IBV_WC_LOC_PROT_ERR);
SAME_VALUE(IBV_WC_WR_FLUSH_ERR);
SAME_VALUE(IBV_WC_REM_ACCESS_ERR);
SAME_VALUE(IBV_WC_RETRY_EXC_ERR);
SAME_VALUE(IBV_WC_GENERAL_ERR);
SAME_VALUE(IBV_WC_SEND);
SAME_VALUE(IBV_WC_RECV);
SAME_VALUE(IBV_ACCESS_LOCAL_WRITE);
SAME_VALUE(IBV_ACCESS_REMOTE_WRITE);
SAME_VALUE(IBV_ACCESS_REMOTE_READ);
SAME_VALUE(IBV_QPT_RC);
SAME_VALUE(IBV_QPT_UC);
SAME_VALUE(IBV_QPT_UD);
SAME_VALUE(IBV_QP_STATE);
SAME_VALUE(IBV_QP_ACCESS_FLAGS);
SAME_VALUE(IBV_QP_PKEY_INDEX);
SAME_VALUE(IBV_QP_PORT);
SAME_VALUE(IBV_QP_AV);
SAME_VALUE(IBV_QP_PATH_MTU);
SAME_VALUE(IBV_QP_RQ_PSN);
SAME_VALUE(IBV_QP_SQ_PSN);
SAME_VALUE(IBV_QP_DEST_QPN);
SAME_VALUE(IBV_QPS_RESET);
SAME_VALUE(IBV_QPS_INIT);
SAME_VALUE(IBV_QPS_RTR);
SAME_VALUE(IBV_QPS_RTS);
SAME_VALUE(IBV_QPS_ERR);
SAME_VALUE(IBV_MIG_MIGRATED);
SAME_VALUE(IBV_WR_SEND);
SAME_VALUE(IBV_SEND_SIGNALED);

#undef SAME_SIZE
#undef SAME_PLACE
#undef SAME_VALUE

} // namespace

TEST_CASE("verbs_abi.h has the layout of <infiniband/verbs.h>") {
  CHECK(sizeof(jlaunch::abi::ibv_context) == sizeof(struct ::ibv_context));
}
