"""The server of Flower's quickstart: FedAvg, and a test on public pictures after every round."""

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from guarded_fedavg.task import Net, test

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Runs FedAvg over the nodes that answer."""
    config = context.run_config

    def tested(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        net = Net()
        net.load_state_dict(arrays.to_torch_state_dict())
        accuracy = test(net, str(config["data"]))
        print(f"round {server_round}: accuracy {accuracy:.3f}", flush=True)
        return MetricRecord({"accuracy": accuracy})

    FedAvg(fraction_evaluate=0.0).start(
        grid=grid,
        initial_arrays=ArrayRecord(Net().state_dict()),
        num_rounds=int(config["num-server-rounds"]),
        evaluate_fn=tested,
    )
